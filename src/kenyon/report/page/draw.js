// What all charts share: elements, numbers, scales, colours and marks. Text is always set as text, never as markup.
const values = JSON.parse(document.getElementById("values").textContent);
const NARROW = 480;
const MINUS = "\u2212";

function element(name, attributes = {}, parent = null, text = null, space = null) {
  const made = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function svg(name, attributes, parent, text = null) {
  return element(name, attributes, parent, text, "http://www.w3.org/2000/svg");
}

function canvasFor(box, width, height) {
  const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, box);
  return drawn;
}

function shown(value, digits) {
  return value === null || value === undefined ? "not measured" : value.toFixed(digits).replace("-", MINUS);
}

function withError(value, error, digits) {
  const known = value !== null && error !== null && error !== undefined;
  return shown(value, digits) + (known ? `\u00a0±\u00a0${shown(error, digits)}` : "");
}

function plain(value) { // a number on an axis
  const text = Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-4) ? value.toExponential(0) : String(+value.toFixed(6));
  return text.replace("-", MINUS);
}

// About `count` round numbers from low to high, and the range they span.
function ticks(low, high, count) {
  if (!(high > low)) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => power * m >= rough);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return { found, step };
}

function outer(low, high, count) { // the same, with ends that are ticks
  const { step } = ticks(low, high, count);
  if (!(high > low)) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
  return [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
}

function scale([low, high], [from, to]) {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

function extent(numbers) {
  let low = Infinity, high = -Infinity;
  for (const v of numbers) if (v !== null && v !== undefined) { if (v < low) low = v; if (v > high) high = v; }
  return low <= high ? [low, high] : [0, 1];
}

const ruler = document.createElement("canvas").getContext("2d");

const family = getComputedStyle(document.body).fontFamily;

function textWidth(text, size) {
  ruler.font = `${size}px ${family}`;
  return ruler.measureText(text.slice(0, 200)).width;
}

function shorten(text, room, size) {
  if (text.length <= 200 && textWidth(text, size) <= room) return text;
  let low = 1, high = Math.min(text.length, 200); // the most characters that fit
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (textWidth(`${text.slice(0, middle)}…`, size) <= room) low = middle; else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

// A name that does not fit goes on in further lines, four at most, between its values.
function brokenLines(text, room, size) {
  const lines = [];
  for (const part of text.slice(0, 200).split(/(?<=,) ?|(?=\[)/)) {
    const longer = lines.length ? `${lines.at(-1)}${lines.at(-1).endsWith(",") ? " " : ""}${part}` : part;
    if (lines.length && (lines.length === 4 || textWidth(longer, size) <= room)) lines[lines.length - 1] = longer;
    else lines.push(part);
  }
  return textWidth(text, size) <= room ? [text] : lines;
}

// Names below a chart that has no room for them beside its marks.
function nameBelow(box, named) {
  const list = element("ul", { class: "key", "aria-hidden": "true" }, box);
  for (const { name, style } of named) {
    const item = element("li", {}, list);
    mark(svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14" }, item), style, 0, 0, 5);
    element("span", {}, item, name.replace(/,(?=\S)/g, ",\u200b").replace("[", "\u200b["));
  }
}

const COLOURS = ["blue", "red", "green", "gold", "purple", "sky", "pink", "brown", "grey"];

// A result's label has its colour and mark on the whole page; other names take colours in turn.
function styleOf(name, place) {
  if (Object.hasOwn(values.styles, name)) return values.styles[name];
  return [COLOURS[place % COLOURS.length], ["circle", "square", "triangle", "diamond"][Math.floor(place / COLOURS.length) % 4]];
}

const SHAPES = {
  circle: (r) => `M${-r},0a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0`,
  square: (r) => `M${-r * 0.9},${-r * 0.9}h${1.8 * r}v${1.8 * r}h${-1.8 * r}z`,
  triangle: (r) => `M0,${-1.15 * r}L${1.1 * r},${0.8 * r}H${-1.1 * r}z`,
  diamond: (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0z`,
  plus: (r) => `M${-r},${-r / 3}h${r * 2 / 3}v${-r * 2 / 3}h${r * 2 / 3}v${r * 2 / 3}h${r * 2 / 3}v${r * 2 / 3}h${-r * 2 / 3}v${r * 2 / 3}h${-r * 2 / 3}v${-r * 2 / 3}h${-r * 2 / 3}z`,
  cross: (r) => `M${-r},${-r * 0.6}L${-r * 0.6},${-r}L0,${-r * 0.4}L${r * 0.6},${-r}L${r},${-r * 0.6}L${r * 0.4},0L${r},${r * 0.6}L${r * 0.6},${r}L0,${r * 0.4}L${-r * 0.6},${r}L${-r},${r * 0.6}L${-r * 0.4},0z`,
};

function mark(parent, [colour, shape], x, y, r, kind = "mark") {
  return svg("path", { d: SHAPES[shape](r), transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`, class: `${kind} ${colour}` }, parent);
}

// Move labels apart so that each has `gap`: those that crowd become a block about the mean of their places.
function spread(labels, gap, low, high) {
  labels.sort((a, b) => a.y - b.y);
  const blocks = [];
  for (const label of labels) {
    let block = { some: [label], at: label.y };
    while (blocks.length && blocks.at(-1).at + blocks.at(-1).some.length * gap > block.at) {
      const some = [...blocks.pop().some, ...block.some];
      const at = some.reduce((sum, l, i) => sum + l.y - i * gap, 0) / some.length;
      block = { some, at: Math.max(low, Math.min(high - (some.length - 1) * gap, at)) };
    }
    blocks.push(block);
  }
  for (const block of blocks) block.some.forEach((label, i) => { label.at = block.at + i * gap; });
  return labels;
}

// Names at the right of their marks, each with a line to it where it had to move.
function nameBeside(drawing, labels, { left, right, low, high, size }) {
  for (const l of spread(labels, size + 4, low, high)) {
    const group = svg("g", { class: "name", "data-row": l.row }, drawing);
    const d = `M${l.x.toFixed(1)},${l.y.toFixed(1)}L${(left - 4).toFixed(1)},${l.at.toFixed(1)}`;
    if (Math.abs(l.at - l.y) > 2 || left - l.x > 14) svg("path", { d, class: `leader ${l.style[0]}` }, group);
    svg("text", { x: left, y: l.at + size * 0.35, "font-size": size }, group, shorten(l.name, right - left, size));
  }
}

// A place near each point where its name covers nothing: eight directions, nearer ones first.
const AROUND = [[1, 0], [-1, 0], [0, -1], [0, 1], [1, -1], [1, 1], [-1, -1], [-1, 1]];

function nameNear(drawing, points, { left, right, top, bottom, size }) {
  const around = (p, w, h) => ({ l: p.x - w, r: p.x + w, t: p.y - h, b: p.y + h });
  const taken = points.flatMap((p) => [around(p, 7, 7), around(p, p.w, 2), around(p, 2, p.h)]);
  const far = (p, box) => Math.hypot(Math.max(box.l - p.x, 0, p.x - box.r), Math.max(box.t - p.y, 0, p.y - box.b));
  const free = (box) => box.l >= left && box.r <= right && box.t >= top && box.b <= bottom
    && !taken.some((o) => box.l < o.r && box.r > o.l && box.t < o.b && box.b > o.t);
  for (const p of points) {
    const text = shorten(p.name, (right - left) * 0.4, size), w = textWidth(text, size) + 2, h = size + 2;
    let found = null;
    search: for (const away of [10, 18, 28, 42, 60, 84, 112, 144]) {
      for (const [dx, dy] of AROUND) {
        const x = p.x + dx * away, y = p.y + dy * (dx ? away * 0.7 : away + 4);
        const box = { l: dx > 0 ? x : dx < 0 ? x - w : x - w / 2, t: y - h / 2 };
        Object.assign(box, { r: box.l + w, b: box.t + h });
        const mine = away > 18 || points.every((other) => other === p || far(other, box) > far(p, box));
        if (mine && free(box)) { found = { box, x, y, away }; break search; } // a name without a line is nearest to its own
      }
    }
    if (!found) continue; // the tip and the table still name it
    taken.push(found.box);
    const group = svg("g", { class: "name", "data-row": p.row }, drawing);
    if (found.away > 18) svg("path", { d: `M${p.x},${p.y}L${found.x},${found.y}`, class: `leader ${p.style[0]}` }, group);
    svg("text", { x: found.box.l + 1, y: found.box.t + size * 0.9, "font-size": size }, group, text);
  }
}

function axisX(drawing, view, at, place, { count, from, to, low, high }) {
  for (const tick of ticks(low, high, count).found) {
    svg("text", { x: at(tick), y: place + 18, class: "tick", "text-anchor": "middle" }, drawing, plain(tick));
    svg("line", { x1: at(tick), x2: at(tick), y1: place, y2: place + 4, class: "axis" }, drawing);
  }
  svg("line", { x1: from, x2: to, y1: place, y2: place, class: "axis" }, drawing);
  svg("text", { x: (from + to) / 2, y: place + 36, class: "axis-name", "text-anchor": "middle" }, drawing, view.x);
}

function axisY(drawing, view, at, { count, from, to, low, high }) {
  for (const tick of ticks(low, high, count).found) {
    svg("line", { x1: from, x2: to, y1: at(tick), y2: at(tick), class: "grid" }, drawing);
    svg("text", { x: from - 8, y: at(tick) + 4, class: "tick", "text-anchor": "end" }, drawing, plain(tick));
  }
  svg("text", { x: 0, y: 12, class: "axis-name" }, drawing, view.y);
}
