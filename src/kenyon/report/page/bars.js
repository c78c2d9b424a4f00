// A row a name: a bar from zero, or a dot; the mean with its error, single values, and a reference beside.
function drawBars(view, box, width) {
  const narrow = width < NARROW, size = narrow ? 12 : 13, dots = view.style === "dots";
  const top = 8, data = view.data;
  const told = data.map((one) => withError(one.value, one.error, view.digits));
  const room = width * (narrow ? 0.38 : 0.34);
  const parts = data.map((one) => brokenLines(one.name, room - 10, size));
  const most = Math.max(1, ...parts.map((lines) => lines.length));
  const step = most > 1 ? 8 + most * (size + 1) : 27, height = top + data.length * step + 46;
  const names = Math.min(Math.max(0, ...parts.flat().map((text) => textWidth(text, size))) + 14, room);
  const numbers = Math.max(0, ...told.map((text) => textWidth(text, size))) + 14;
  const from = names, to = Math.max(from + 40, width - numbers), bottom = top + data.length * step;
  const all = data.flatMap((one) => [one.value, one.reference ?? null, ...(one.points || []), one.value === null ? null : one.value + (one.error ?? 0), one.value === null ? null : one.value - (one.error ?? 0)]);
  const [low, high] = extent(dots ? all : [...all, 0]);
  const range = outer(low, high, narrow ? 3 : 5), x = scale(range, [from, to]);
  const drawing = canvasFor(box, width, height);
  for (const tick of ticks(...range, narrow ? 3 : 5).found) svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: "grid" }, drawing);
  axisX(drawing, view, x, bottom, { count: narrow ? 3 : 5, from, to, low: range[0], high: range[1] });
  const rows = data.map((one, row) => {
    const style = styleOf(one.label || one.name, row), middle = top + (row + 0.5) * step;
    const group = svg("g", { "data-row": row }, drawing);
    const first = middle + size * 0.35 - (size + 1) * (parts[row].length - 1) / 2;
    parts[row].forEach((text, line) => svg("text", { x: 0, y: first + line * (size + 1), "font-size": size, class: "name" }, group, shorten(text, names - 10, size)));
    svg("text", { x: width, y: middle + size * 0.35, "font-size": size, "text-anchor": "end", class: "number" }, group, told[row]);
    if (one.value === null) return [];
    const end = x(one.value);
    if (dots) svg("line", { x1: from, x2: to, y1: middle, y2: middle, class: "track" }, group);
    else svg("rect", { x: Math.min(x(0), end), width: Math.abs(end - x(0)), y: middle - 7, height: 14, class: `bar ${style[0]}` }, group);
    const single = dots ? `point ${style[0]}` : "point on-bar";
    for (const value of one.points || []) if (value !== null) svg("circle", { cx: x(value), cy: middle, r: 2.5, class: single }, group);
    if (one.error) svg("line", { x1: x(one.value - one.error), x2: x(one.value + one.error), y1: middle, y2: middle, class: dots ? `error thick ${style[0]}` : "error ink" }, group);
    if (dots) mark(group, style, end, middle, 5.5);
    const lines = [one.name, `${view.x}: ${told[row]}`];
    if (one.reference !== null && one.reference !== undefined) {
      const at = x(one.reference);
      group.prepend(svg("line", { x1: at, x2: at, y1: middle - 10, y2: middle + 10, class: "reference" }, group));
      lines.push(`${view.reference_name || "reference"}: ${shown(one.reference, view.digits)}`);
    }
    if (one.points?.length) lines.push(`single: ${one.points.map((v) => shown(v, view.digits)).join(", ")}`);
    return [{ x: end, y: middle, lines }];
  });
  const row = (_, y) => { const found = Math.floor((y - top) / step); return rows[found]?.length ? [found, 0] : null; };
  return { rows, nearest: row, highlight: highlighter(drawing) };
}
