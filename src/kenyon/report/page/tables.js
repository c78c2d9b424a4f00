// Summary tables: sorted by a click or Enter on a column's name; one stop of the Tab key, then arrow keys.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, place) => {
    const numeric = head.dataset.sort === "number", name = head.textContent;
    const button = element("button", { type: "button", class: "sort" }, null, name);
    head.replaceChildren(button);
    if (head.dataset.tip) { button.dataset.tip = head.dataset.tip; button.setAttribute("aria-description", head.dataset.tip); delete head.dataset.tip; }
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const up = now ? now === "descending" : !numeric;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => (numeric ? parseFloat(row.cells[place].dataset.value) : row.cells[place].textContent);
      body.append(...[...body.rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (!numeric) return (up ? 1 : -1) * x.localeCompare(y);
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // what is missing stays last
        return up ? x - y : y - x;
      }));
      said.textContent = `Sorted by ${name}, ${up ? "ascending" : "descending"}`;
    });
  });
}

function walkable(table) {
  const links = () => [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.querySelector("a")));
  let stop = null;
  const rest = (link) => { if (stop) stop.tabIndex = -1; stop = link; stop.tabIndex = 0; };
  links().flat().forEach((link) => { if (link) link.tabIndex = -1; });
  const first = links()[0]?.[0];
  if (!first) return;
  rest(first);
  table.tBodies[0].addEventListener("focusin", (event) => { const link = event.target.closest("a"); if (link) rest(link); });
  table.tBodies[0].addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    const rows = links(), i = rows.findIndex((row) => row.includes(event.target)), j = rows[i]?.indexOf(event.target);
    const next = rows[i + step[0]]?.[j + step[1]];
    if (next) { event.preventDefault(); next.focus(); }
  });
}

function tipped(event) {
  const place = event.target.closest?.("[data-tip]");
  if (!place) return;
  showTip([place.textContent.replace(" (best)", ""), ...place.dataset.tip.split("; ")], () => {
    const { left, width, top } = place.getBoundingClientRect();
    return [left + width / 2, top];
  });
}

for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, tipped);
for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, (event) => { if (event.target.closest?.("[data-tip]")) hideTip(); });
for (const table of document.querySelectorAll("table.summary")) { sortable(table); walkable(table); }
