// Points with bars of error, named beside.
function drawScatter(view, box, width) {
  const narrow = width < NARROW, size = narrow ? 11 : 13;
  const points = view.data.flatMap((one, i) => one.x.map((_, k) => ({
    name: one.labels?.[k] ? `${one.name} ${one.labels[k]}` : one.name, style: styleOf(one.name, i),
    x: one.x[k], y: one.y[k], dx: one.x_error?.[k] ?? null, dy: one.y_error?.[k] ?? null,
  }))).filter((p) => p.x !== null && p.y !== null);
  const named = points.length <= 40;
  const height = Math.min(430, Math.max(320, width * 0.66));
  const from = 40, to = width - 10, top = 28, bottom = height - 46;
  const spans = (v, e) => points.flatMap((p) => [p[v] - (p[e] ?? 0), p[v] + (p[e] ?? 0)]);
  const across = outer(...extent(spans("x", "dx")), narrow ? 4 : 6), up = outer(...extent(spans("y", "dy")), 5);
  const x = scale(across, [from, to]), y = scale(up, [bottom, top]);
  const drawing = canvasFor(box, width, height);
  axisY(drawing, view, y, { count: 5, from, to, low: up[0], high: up[1] });
  axisX(drawing, view, x, bottom, { count: narrow ? 4 : 6, from, to, low: across[0], high: across[1] });
  points.sort((a, b) => a.x - b.x);
  const rows = points.map((p, row) => {
    const group = svg("g", { "data-row": row }, drawing), a = x(p.x), b = y(p.y);
    if (p.dx) svg("line", { x1: x(p.x - p.dx), x2: x(p.x + p.dx), y1: b, y2: b, class: `error ${p.style[0]}` }, group);
    if (p.dy) svg("line", { x1: a, x2: a, y1: y(p.y - p.dy), y2: y(p.y + p.dy), class: `error ${p.style[0]}` }, group);
    mark(group, p.style, a, b, 5.5);
    const lines = [p.name, `${view.x}: ${withError(p.x, p.dx, view.digits)}`, `${view.y}: ${withError(p.y, p.dy, view.digits)}`];
    return [{ x: a, y: b, lines }];
  });
  const reach = (at, v, e) => (e ? Math.abs(at(v + e) - at(v)) : 0);
  const labels = points.map((p, row) => ({ name: p.name, row, style: p.style, x: x(p.x), y: y(p.y), w: reach(x, p.x, p.dx), h: reach(y, p.y, p.dy) }));
  const below = named && narrow && labels.some((l) => textWidth(l.name, size) > (width - from) * 0.4);
  if (below) nameBelow(box, labels);
  else if (named) nameNear(drawing, labels, { left: from, right: width, top: top - 14, bottom: bottom - 2, size });
  return { rows, highlight: highlighter(drawing) };
}
