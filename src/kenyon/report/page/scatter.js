// Points with bars of error, named beside.
function drawScatter(view, box, width) {
  const narrow = width < NARROW, size = narrow ? 11 : 13;
  const points = view.data.flatMap((one, i) => one.x.map((_, k) => ({
    name: one.labels?.[k] ? `${one.name} ${one.labels[k]}` : one.name, style: styleOf(one.name, i),
    x: one.x[k], y: one.y[k], dx: one.x_error?.[k] ?? null, dy: one.y_error?.[k] ?? null,
  }))).filter((p) => p.x !== null && p.y !== null);
  const named = points.length <= 40;
  const names = Math.max(0, ...points.map((p) => textWidth(p.name, size)));
  const beside = named ? Math.min(names + 30, width * 0.36) : 10;
  const height = Math.max(Math.min(420, Math.max(300, width * 0.62)), named ? points.length * (size + 4) + 70 : 0);
  const from = 40, to = width - beside, top = 28, bottom = height - 46;
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
  const labels = named ? points.map((p, row) => ({ name: p.name, row, style: p.style, x: x(p.x) + 7, y: y(p.y) })) : [];
  nameBeside(drawing, labels, { left: to + 16, right: width, low: top, high: bottom, size });
  return { rows, highlight: highlighter(drawing) };
}
