// Lines with bands, named at their right ends.
function drawLines(view, box, width) {
  const narrow = width < NARROW, size = narrow ? 11 : 13;
  const series = view.data.map((one, i) => ({ ...one, style: styleOf(one.name, i), last: one.y.findLast((v) => v !== null) ?? -Infinity }))
    .sort((a, b) => b.last - a.last);
  const named = series.filter((one) => !one.thin);
  const names = Math.max(0, ...named.map((one) => textWidth(one.name, size)));
  const below = narrow && names + 26 > width * 0.36, beside = below ? 16 : Math.min(names + 26, width * 0.36);
  const height = Math.max(narrow ? 300 : Math.min(500, Math.max(380, width * 0.5)), below ? 0 : named.length * (size + 4) + 70);
  const from = 34, to = width - beside, top = 28, bottom = height - 46;
  const [left, right] = extent(series.flatMap((one) => one.x));
  const reach = series.flatMap((one) => one.y.flatMap((y, i) => (y === null ? [] : [y - (one.error?.[i] ?? 0), y + (one.error?.[i] ?? 0)])));
  const range = outer(...extent(reach), 8), only = !(right > left);
  const x = scale(only ? [left - 1, left + 1] : [left, right], [from, to - 6]), y = scale(range, [bottom, top]);
  const drawing = canvasFor(box, width, height);
  axisY(drawing, view, y, { count: 5, from, to, low: range[0], high: range[1] });
  const whole = series.every((one) => one.x.every(Number.isInteger));
  const count = whole ? Math.min(narrow ? 4 : 10, Math.max(1, right - left)) : narrow ? 4 : 8;
  axisX(drawing, view, x, bottom, { count, from, to, low: left, high: only ? left + 0.1 : right });
  const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)},${b.toFixed(1)}`).join("");
  const labels = [], rows = [];
  series.map((one, row) => ({ one, row })).reverse().forEach(({ one, row }) => {
    const known = one.x.map((at, i) => ({ at, i })).filter(({ i }) => one.y[i] !== null);
    const group = svg("g", { "data-row": row }, drawing);
    const spans = known.map(({ at, i }) => [x(at), one.y[i], one.error?.[i] ?? 0]);
    if (spans.length > 1 && spans.some((s) => s[2] > 0)) {
      const edge = [...spans.map(([a, v, e]) => [a, y(v + e)]), ...spans.reverse().map(([a, v, e]) => [a, y(v - e)])];
      svg("path", { d: `${path(edge)}Z`, class: `band ${one.style[0]}` }, group);
    }
    if (known.length > 1) svg("path", { d: path(known.map(({ at, i }) => [x(at), y(one.y[i])])), class: `line ${one.style[0]}${one.dashed ? " dashed" : ""}${one.thin ? " thin" : ""}` }, group);
    if (!known.length) { rows[row] = []; return; }
    const end = known.at(-1);
    if (!one.thin) mark(group, one.style, x(end.at), y(one.y[end.i]), 4);
    if (!one.thin) labels.push({ name: one.name, row, style: one.style, x: x(end.at) + 5, y: y(one.y[end.i]) });
    rows[row] = known.map(({ at, i }) => ({
      x: x(at), y: y(one.y[i]), lines: [one.name, `${view.x}: ${plain(at)}`, `${view.y}: ${withError(one.y[i], one.error?.[i], view.digits)}`],
    }));
  });
  if (below) nameBelow(box, named);
  else nameBeside(drawing, labels, { left: to + 14, right: width, low: top, high: bottom + 8, size });
  return { rows, highlight: highlighter(drawing), reach: Infinity };
}
