// The matrix: a grid of buttons, one of them in the tab order, the others an arrow key away.
// A spot is what a button opens: a toggle and a column; in a table of one column also a guard.
const spots = [];
let current = null;

function addSpot(toggle, column, guard, marks, words) {
  const spot = { toggle, column, guard, marks, words: words.toLowerCase(), button: null, row: null };
  spots.push(spot);
  return spot;
}

function keyOf(spot) {
  const column = index.columns[spot.column];
  const key = `${spot.toggle.id}@${column.release},${column.device}`;
  return spot.guard ? `${key},${spot.guard.id}` : key;
}

function brief(mark) {
  return { absent: "", "not run": "", "eval only": "", listed: "", "has the bug": "bug", "has the fix": "fix" }[mark] ?? mark;
}

function boxButton(spot, mark, label, more) {
  const button = make(
    "button",
    { type: "button", class: `box tone-${toneOf(mark)}`, tabindex: "-1", "aria-label": label, "data-mark": mark },
    make("span", { class: "glyph", "aria-hidden": "true" }, glyphOf(mark)),
    make("span", { class: brief(mark).length > 4 ? "word long" : "word", "aria-hidden": "true" }, brief(mark)),
    more ? make("span", { class: "more", "aria-hidden": "true" }, more) : null,
  );
  button.addEventListener("click", () => openSpot(spot));
  button.addEventListener("focus", () => setCurrent(spot));
  spot.button = button;
  return button;
}

function toggleHead(toggle, attributes = {}) {
  return make(
    "th",
    { scope: "row", class: "toggle", role: "rowheader", ...attributes },
    make("span", { class: "id" }, toggle.id),
    make("span", { class: "title" }, toggle.title),
    toggle.evaluations.length ? make("span", { class: "title" }, `only unfix eval ${toggle.evaluations.join(", ")}`) : null,
  );
}

function wordsOf(toggle, guards) {
  const upstream = toggle.upstream.map((number) => `#${number}`);
  return [toggle.id, toggle.title, toggle.family, toggle.symptom, ...upstream, ...guards.map((guard) => guard.id)].join(" ");
}

function bigMatrix() {
  const heads = index.columns.map((column) => make("th", { scope: "col", role: "columnheader" }, column.label));
  const table = make("table", { role: "grid", class: "matrix", "aria-label": "Toggles on releases" },
    make("colgroup", {}, make("col", { class: "names" }), ...index.columns.map(() => make("col", {}))),
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, make("th", { scope: "col", role: "columnheader", class: "corner" }, "toggle"), ...heads)));
  for (const family of index.families) {
    const body = make("tbody", { role: "rowgroup" }, familyRow(family, index.columns.length + 1));
    for (const toggle of family.toggles) {
      const row = make("tr", { role: "row", class: "line" }, toggleHead(toggle));
      toggle.boxes.forEach((box, column) => {
        const spot = addSpot(toggle, column, null, box.guards.length ? box.guards.map((guard) => guard.mark) : [box.mark], wordsOf(toggle, box.guards));
        spot.row = row;
        const number = box.guards.length;
        const shown = box.guards.filter((guard) => guard.mark === box.mark).length;
        const label = `${toggle.id} on ${index.columns[column].label}: ${box.mark}, ${number} ${number === 1 ? "guard" : "guards"}`;
        const more = number > 1 ? (shown && shown < number ? `${shown}/${number}` : `${number}`) : "";
        row.append(make("td", { role: "gridcell" }, boxButton(spot, box.mark, label, more)));
      });
      body.append(row);
    }
    table.append(body);
  }
  // Columns share the width; below 50 pixels each, the table scrolls in its box.
  table.style.minWidth = `${(innerWidth <= 900 ? 184 : 210) + 50 * index.columns.length}px`;
  return table;
}

function familyRow(family, span) {
  return make("tr", { role: "row", class: "family" }, make("th", { role: "rowheader", scope: "rowgroup", colspan: span }, family.name));
}

function sideText(guard, name) {
  const side = guard && guard.sides.find((one) => one[0] === name);
  if (!side) return make("td", { role: "gridcell", class: "side" }, "");
  return make("td", { role: "gridcell", class: "side" }, make("span", { class: "outcome" }, side[1]), side[1] === "n/a" ? null : make("span", { class: "reach" }, `, ran ${times(side[2])}`));
}

function guardMatrix() {
  const sides = index.kind === "lifecycle" ? ["as is"] : ["fixed", "buggy"];
  const titles = index.kind === "lifecycle" ? ["as it is"] : ["applied", "reverted"];
  const heads = ["verdict", "guard", ...titles, "time"].map((title) => make("th", { scope: "col", role: "columnheader" }, title));
  const table = make("table", { role: "grid", class: "matrix guards", "aria-label": "Guards by toggle" },
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)));
  for (const family of index.families) {
    for (const toggle of family.toggles) {
      const body = make("tbody", { role: "rowgroup" },
        make("tr", { role: "row", class: "toggle-row" }, toggleHead(toggle, { colspan: heads.length, scope: "rowgroup" })));
      const box = toggle.boxes[0];
      for (const guard of box.guards.length ? box.guards : [null]) {
        const mark = guard ? guard.mark : box.mark;
        const spot = addSpot(toggle, 0, guard, [mark], wordsOf(toggle, guard ? [guard] : []));
        const label = `${toggle.id}, ${guard ? guard.name : "no guard"}: ${mark}`;
        spot.row = make("tr", { role: "row", class: "line" },
          make("td", { role: "gridcell" }, boxButton(spot, mark, label, "")),
          make("td", { role: "rowheader", class: "guard" }, guard ? guard.name : ""),
          ...sides.map((name) => sideText(guard, name)),
          make("td", { role: "gridcell", class: "time" }, guard && guard.seconds ? seconds(guard.seconds) : ""));
        body.append(spot.row);
      }
      table.append(body);
    }
  }
  return table;
}

// A click beside the boxes of a row opens its worst one, of the newest release.
function openRow(event) {
  const row = event.target.closest("tr.line");
  if (!row || event.target.closest("button, a, summary")) return;
  const here = spots.filter((spot) => spot.row === row).reverse();
  openSpot(here.find((spot) => !spot.marks.every(isGood)) || here[0]);
}

function drawMatrix() {
  if (!spots.length && toggles.length && index.columns.length) {
    byId("matrix").append(index.single ? guardMatrix() : bigMatrix());
    byId("matrix").addEventListener("keydown", walk);
    byId("matrix").addEventListener("click", openRow);
  }
  const used = new Set(spots.flatMap((spot) => [spot.button.dataset.mark]));
  for (const mark of Object.keys(index.marks)) {
    if (!used.has(mark) || mark === "not run") continue;
    const { glyph, tone, meaning } = index.marks[mark];
    byId("legend").append(make("li", {}, make("span", { class: `key tone-${tone}`, "aria-hidden": "true" }, glyph), make("b", {}, mark), ` ${meaning}`));
  }
}

function setCurrent(spot) {
  if (current) current.button.tabIndex = -1;
  current = spot;
  if (spot) spot.button.tabIndex = 0;
}

function visibleRows() {
  const rows = new Map();
  for (const spot of spots) {
    if (spot.row.hidden) continue;
    if (!rows.has(spot.row)) rows.set(spot.row, []);
    rows.get(spot.row).push(spot);
  }
  return [...rows.values()];
}

function walk(event) {
  if (!current || !event.target.closest(".box")) return;
  const rows = visibleRows();
  let down = rows.findIndex((row) => row.includes(current));
  let across = down < 0 ? 0 : rows[down].indexOf(current);
  const last = event.ctrlKey || event.metaKey;
  const end = rows.length - 1;
  if (event.key === "ArrowDown") down += 1;
  else if (event.key === "ArrowUp") down -= 1;
  else if (event.key === "ArrowRight") across += 1;
  else if (event.key === "ArrowLeft") across -= 1;
  else if (event.key === "PageDown") down += 8;
  else if (event.key === "PageUp") down -= 8;
  else if (event.key === "Home") [down, across] = [last ? 0 : down, 0];
  else if (event.key === "End") [down, across] = [last ? end : down, Infinity];
  else return;
  event.preventDefault();
  const row = rows[Math.max(0, Math.min(end, down))];
  const spot = row[Math.max(0, Math.min(row.length - 1, across))];
  setCurrent(spot);
  spot.button.focus();
}
