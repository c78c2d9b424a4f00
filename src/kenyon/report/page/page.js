// Puts charts in their places and keeps them fitting; colours, origins and printing.
const DRAW = { lines: drawLines, scatter: drawScatter, bars: drawBars, heatmap: drawHeatmap };
const charts = [...document.querySelectorAll(".chart")];

function redraw(box, width = Math.floor(box.clientWidth)) {
  const view = values.views[box.dataset.view];
  if (width < 1) return;
  box.drawnAt = width;
  box.replaceChildren();
  explore(box, view, DRAW[view.kind](view, box, width));
}

const fitting = new ResizeObserver((entries) => {
  for (const { target } of entries) if (Math.floor(target.clientWidth) !== target.drawnAt) redraw(target);
});
for (const box of charts) box.hidden = false;
const widths = charts.map((box) => Math.floor(box.clientWidth)); // all before any is drawn: one layout, not many
charts.forEach((box, i) => { redraw(box, widths[i]); fitting.observe(box); });

for (const swatch of document.querySelectorAll(".swatch")) {
  if (!Object.hasOwn(values.styles, swatch.dataset.label)) continue;
  mark(svg("svg", { width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" }, swatch), values.styles[swatch.dataset.label], 0, 0, 5);
}

for (const select of document.querySelectorAll("select[data-frames]")) {
  select.parentNode.hidden = false;
  select.addEventListener("change", () => chooseFrame(document.getElementById(select.dataset.frames), select.value));
}

// Light or dark: the system's choice until the reader makes one, which is remembered.
const root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
const button = document.querySelector(".theme");
const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

function named() {
  button.textContent = dark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`);
}

function recolour() {
  named();
  ramps.clear();
  charts.filter((box) => values.views[box.dataset.view].kind === "heatmap").forEach((box) => redraw(box, box.drawnAt));
}

button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("kenyon-theme", root.dataset.theme); } catch { /* not remembered, then */ }
  recolour();
});
system.addEventListener("change", recolour);
named();

// Paper is light, and heat maps keep their size on it: there is no telling how wide it is.
let before;
const maps = [...document.querySelectorAll(".small .heatmap .chart")];
addEventListener("beforeprint", () => {
  before = root.dataset.theme;
  root.dataset.theme = "light";
  recolour();
  for (const box of maps) box.style.width = `${box.drawnAt}px`;
});
addEventListener("afterprint", () => {
  if (before) root.dataset.theme = before; else delete root.dataset.theme;
  for (const box of maps) box.style.width = "";
  recolour();
});

// A link to an origin opens it and moves the focus there.
function reveal() {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const closed = place?.closest("details.origin");
  if (!closed) return;
  closed.open = true;
  place.focus({ preventScroll: true });
  closed.scrollIntoView({ block: "start" });
}
addEventListener("hashchange", reveal);
document.addEventListener("click", (event) => { // the same place asked for twice changes no hash
  const link = event.target.closest?.('a[href^="#origin"]');
  if (link && link.getAttribute("href") === location.hash) reveal();
});
reveal();
