// Values on hover and on focus. A chart is one stop of the Tab key; the arrow keys walk through its values.
const tip = element("div", { class: "tip", id: "tip", "aria-hidden": "true", hidden: "" }, document.body);
const said = element("div", { class: "unseen", id: "said", role: "status" }, document.body);

let anchor = null; // gives the point of the window that the tip is about, also after scrolling

function showTip(lines, about) {
  tip.replaceChildren();
  lines.forEach((line, i) => element(i ? "div" : "strong", {}, tip, line));
  anchor = about;
  placeTip();
}

function placeTip() {
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect(), [x, y] = anchor();
  const room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(4, Math.min(room - width - 4, x - width / 2))}px`;
  tip.style.top = `${y - height - 12 > 4 ? y - height - 12 : y + 16}px`;
}

function hideTip() { tip.hidden = true; }

addEventListener("scroll", () => { if (!tip.hidden) placeTip(); }, { passive: true, capture: true });

document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// model: rows of points {x, y, w?, h?, lines}; optional nearest(x, y) -> [row, column], highlight(row or null),
// and the reach in pixels of the pointer.
// Called again after a chart was drawn anew; the place in it is kept.
function explore(box, view, model) {
  box.model = model;
  if (box.explored) return;
  box.explored = true;
  const at = { row: 0, column: 0 };
  const cursor = element("div", { class: "cursor", hidden: "" });
  box.setAttribute("tabindex", "0");
  box.setAttribute("role", "application");
  box.setAttribute("aria-roledescription", "chart");
  box.setAttribute("aria-label", `${view.title}. Arrow keys walk through the values; the table has them all.`);

  function show(row, column, speak) {
    const rows = box.model.rows;
    at.row = Math.max(0, Math.min(rows.length - 1, row));
    at.column = Math.max(0, Math.min((rows[at.row] || []).length - 1, column));
    const point = (rows[at.row] || [])[at.column];
    if (!point) return;
    const w = point.w || 18, h = point.h || 18;
    if (cursor.parentNode !== box) box.append(cursor);
    cursor.hidden = false;
    cursor.classList.toggle("cell", Boolean(point.w));
    Object.assign(cursor.style, { left: `${point.x - w / 2}px`, top: `${point.y - h / 2}px`, width: `${w}px`, height: `${h}px` });
    showTip(point.lines, () => {
      const frame = box.getBoundingClientRect();
      return [frame.left + point.x, frame.top + point.y - h / 2];
    });
    box.model.highlight?.(at.row);
    if (speak) said.textContent = point.lines.join(", ");
  }

  function hide() {
    cursor.hidden = true;
    box.model.highlight?.(null);
    hideTip();
  }

  function hover(event) {
    const frame = box.getBoundingClientRect();
    const found = (box.model.nearest || nearest)(event.clientX - frame.left, event.clientY - frame.top, box.model);
    if (found) show(...found, false); else hide();
  }

  box.addEventListener("pointermove", hover);
  box.addEventListener("pointerdown", hover);
  box.addEventListener("pointerleave", () => (document.activeElement === box && box.matches(":focus-visible") ? show(at.row, at.column) : hide()));
  box.addEventListener("focus", () => { if (box.matches(":focus-visible")) show(at.row, at.column, true); });
  box.addEventListener("blur", hide);
  box.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -Infinity], End: [0, Infinity] };
    if (event.key === "Escape") hide();
    const step = steps[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    show(at.row + step[0], Math.max(0, Math.min(1e9, at.column + step[1])), true);
  });
}

function nearest(x, y, { rows, reach = 60 }) {
  let best = null, least = reach ** 2;
  rows.forEach((row, i) => row.forEach((point, j) => {
    const far = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (far < least) { least = far; best = [i, j]; }
  }));
  return best;
}

// Dim what belongs to other rows.
function highlighter(drawing) {
  return (row) => {
    for (const part of drawing.querySelectorAll("[data-row]")) part.classList.toggle("dim", row !== null && part.dataset.row !== String(row));
  };
}
