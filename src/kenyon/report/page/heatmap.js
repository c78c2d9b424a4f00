// One pixel a cell, enlarged by the browser; colours come from the style, so they follow light and dark.
const ramps = new Map(); // until the scheme changes

function ramp(box, kind) {
  if (!ramps.has(kind)) ramps.set(kind, madeRamp(box, kind));
  return ramps.get(kind);
}

function madeRamp(box, kind) {
  const probe = element("span", {}, box), stops = [];
  for (let i = 0; i < 5; i++) {
    probe.style.color = `var(--${kind === "diverging" ? "d" : "s"}${i})`;
    stops.push(getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number));
  }
  probe.remove();
  return (share) => {
    const at = Math.max(0, Math.min(1, share)) * 4, i = Math.min(3, Math.floor(at));
    return stops[i].map((v, k) => v + (stops[i + 1][k] - v) * (at - i));
  };
}

function frameOf(view, name) {
  if (Array.isArray(view.data[0])) return { name: "", data: view.data, columns: view.columns };
  const found = name === null ? view.data[0] : view.data.find((frame) => frame.name === name);
  return found ? { ...found, columns: values.names[found.columns] || view.columns } : null;
}

function drawHeatmap(view, box, width) {
  const frame = frameOf(view, box.dataset.frame ?? null), R = view.rows.length, C = view.columns.length;
  const from = 34, bottom = 34, inner = Math.max(20, width - from - 2);
  const height = Math.round(Math.max(R * Math.min(13, inner / C), Math.min(inner, (inner / C) * R)));
  const holder = element("div", { class: "map" }, box);
  Object.assign(holder.style, { height: `${height + bottom}px` });
  if (!frame) { element("p", { class: "note" }, holder, `There is no ${box.dataset.frame} here.`); return { rows: [] }; }
  const cells = element("canvas", { width: C, height: R }, holder);
  Object.assign(cells.style, { left: `${from}px`, width: `${inner}px`, height: `${height}px` });
  const [low, high] = view.range || extent(frame.data.flat()), colour = ramp(box, view.scale), context = cells.getContext("2d");
  const image = context.createImageData(C, R);
  frame.data.forEach((row, i) => row.forEach((value, j) => {
    if (value === null) return; // stays transparent: the hatching below shows
    const [r, g, b] = colour((value - low) / (high - low || 1));
    image.data.set([r, g, b, 255], 4 * (i * C + j));
  }));
  context.putImageData(image, 0, 0);
  const text = (words, kind, place) => Object.assign(element("span", { class: kind }, holder, String(words)).style, place);
  const w = inner / C, h = height / R, px = (v) => `${v}px`;
  text(view.columns[0], "tick low", { left: px(from), top: px(height + 2) });
  if (C > 1) text(view.columns[C - 1], "tick high", { right: "2px", top: px(height + 2) });
  text(view.x, "axis-name middle", { left: px(from), width: px(inner), top: px(height + 2) });
  text(view.rows[0], "tick side", { right: px(inner + 8), top: px(h / 2 - 8) });
  if (R > 1) text(view.rows[R - 1], "tick side", { right: px(inner + 8), top: px(height - h / 2 - 8) });
  if (height > 60) text(view.y, "axis-name turned", { left: "0px", top: px(height / 2) });
  const rows = frame.data.map((row, i) => row.map((value, j) => ({
    x: from + (j + 0.5) * w, y: (i + 0.5) * h, w, h,
    get lines() { // made when asked for: there are many cells
      return [shown(value, view.digits), `${view.y}: ${view.rows[i]}`, `${view.x}: ${frame.columns[j]}`, ...(frame.name ? [frame.name] : [])];
    },
  })));
  const cell = (a, b) => {
    const i = Math.floor(b / h), j = Math.floor((a - from) / w);
    return rows[i]?.[j] ? [i, j] : null;
  };
  return { rows, nearest: cell };
}

// Another frame for all heat maps of a section, and for their tables.
function chooseFrame(section, name) {
  for (const figure of section.querySelectorAll("figure.heatmap")) {
    const box = figure.querySelector(".chart"), view = values.views[box.dataset.view];
    box.dataset.frame = name;
    redraw(box);
    const frame = frameOf(view, name), table = figure.querySelector("table");
    table.caption.querySelector("span").textContent = `, ${name}`;
    [...table.tBodies[0].rows].forEach((row, i) => [...row.cells].slice(1).forEach((cell, j) => {
      const value = frame?.data[i][j] ?? null;
      cell.textContent = value === null ? "–" : shown(value, view.digits);
    }));
  }
}
