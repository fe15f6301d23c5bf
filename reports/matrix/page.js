// Ten thousand cells: rows are made when their group is opened, and failures a few at a time.
const FAILURES = 30;
const ROWS = 200;
const chosen = { words: "", outcomes: new Set(), only: false, axis: 0, value: null };
const cells = index.cells.map(([identity, mark, took, lost, pairs], place) => {
  const values = new Map();
  for (let at = 0; at < pairs.length; at += 2) values.set(pairs[at], pairs[at + 1]);
  return { identity, mark: index.words[mark], took, lost, values, place };
});
const valueOf = (cell, axis) => (cell.values.has(axis) ? index.axes[axis].values[cell.values.get(axis)] : "-");
for (const cell of cells) {
  const words = [...cell.values.keys()].map((axis) => `${index.axes[axis].name} ${valueOf(cell, axis)}`);
  cell.words = `${cell.identity} ${cell.mark} ${words.join(" ")}`.toLowerCase();
}
let matching = cells;
let shownFailures = FAILURES;

function matches(cell) {
  if (chosen.only && isGood(cell.mark)) return false;
  if (chosen.outcomes.size && !chosen.outcomes.has(cell.mark)) return false;
  if (chosen.value && valueOf(cell, chosen.value[0]) !== chosen.value[1]) return false;
  return chosen.words.toLowerCase().split(/\s+/).every((word) => cell.words.includes(word));
}

function badge(mark) {
  return make("span", { class: `badge tone-${toneOf(mark)}` }, `${glyphOf(mark)} ${mark}`);
}

function valuesOf(cell) {
  const line = make("span", { class: "values" });
  for (const axis of cell.values.keys()) {
    line.append(make("span", { class: "one" }, make("span", { class: "axis-name" }, `${index.axes[axis].name} `), valueOf(cell, axis)));
  }
  return line;
}

function fact(name, value) {
  return value ? make("div", {}, make("dt", {}, name), make("dd", {}, value)) : null;
}

function failure(cell) {
  const details = index.failures[cell.place];
  return make(
    "article", { class: "failure", id: `cell-${cell.identity}` },
    make("h3", {}, badge(cell.mark), make("code", {}, cell.identity), details.how),
    valuesOf(cell),
    make(
      "dl", { class: "facts" },
      fact("took", cell.took ? seconds(cell.took) : ""), fact("on", details.where), fact("inside", details.inside),
      fact("lost", cell.lost ? times(cell.lost) : ""), fact("in the plan as", details.why), fact("command", details.command),
    ),
    details.log ? make("pre", { class: "log" }, details.log) : null,
    make("pre", { class: "replay" }, details.replay),
  );
}

function showFailures() {
  const bad = matching.filter((cell) => cell.place < index.failures.length);
  byId("failures").hidden = bad.length === 0;
  byId("failed").replaceChildren(...bad.slice(0, shownFailures).map(failure));
  const left = bad.length - shownFailures;
  byId("more").hidden = left <= 0;
  byId("more").textContent = `${Math.min(left, FAILURES)} more of ${left}`;
}

// A cell that failed leads to its place among the failures, which are made a few at a time.
function nameOf(cell) {
  const name = make("code", {}, cell.identity);
  return cell.place < index.failures.length ? make("a", { href: `#cell-${encodeURIComponent(cell.identity)}` }, name) : name;
}

function reveal({ target }) {
  const link = target.closest('a[href^="#cell-"]');
  if (!link) return;
  const place = matching.findIndex((cell) => decodeURIComponent(link.hash) === `#cell-${cell.identity}`);
  shownFailures = Math.max(shownFailures, place + 1);
  showFailures();
}

function row(cell) {
  return make(
    "tr", {}, make("th", { scope: "row" }, nameOf(cell)), make("td", {}, badge(cell.mark)),
    make("td", { class: "n" }, cell.took ? seconds(cell.took) : ""), make("td", { class: "words" }, valuesOf(cell)),
  );
}

function fill(details, those) {
  if (details.dataset.filled) return;
  details.dataset.filled = "yes";
  const body = make("tbody");
  const head = make("thead", {}, make("tr", {}, ...["cell", "", "took", "values"].map((name) => make("th", {}, name))));
  details.append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Cells" }, make("table", { class: "listed" }, head, body)));
  const more = make("button", { type: "button", class: "plain", on: { click: add } });
  details.append(more);
  let shown = 0;
  function add() {
    body.append(...those.slice(shown, shown + ROWS).map(row));
    shown += ROWS;
    more.hidden = shown >= those.length;
    more.textContent = `${Math.min(ROWS, those.length - shown)} more of ${those.length - shown}`;
  }
  add();
}

function group(name, those) {
  const counts = new Map();
  for (const cell of those) counts.set(cell.mark, (counts.get(cell.mark) || 0) + 1);
  const order = ["passed", ...index.words.filter((word) => word !== "passed")].filter((word) => counts.has(word));
  const stack = make("span", { class: "stack", "aria-hidden": "true" });
  for (const word of order) {
    const part = make("span", { class: `tone-${toneOf(word)}` });
    part.style.flexGrow = counts.get(word);
    stack.append(part);
  }
  const counted = order.map((word) => `${counts.get(word)} ${word}`).join(", ");
  const details = make("details", { class: "group", on: { toggle: () => details.open && fill(details, those) } });
  details.append(make("summary", {}, make("span", { class: "name" }, name), stack, make("span", { class: "notes" }, counted)));
  return details;
}

function showGroups() {
  const groups = new Map();
  for (const cell of matching) {
    const name = valueOf(cell, chosen.axis);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(cell);
  }
  const passed = (those) => those.filter((cell) => cell.mark === "passed").length / those.length;
  const sorted = [...groups].sort(([, one], [, other]) => passed(one) - passed(other));
  byId("groups").replaceChildren(...sorted.map(([name, those]) => group(name, those)));
}

function changed() {
  matching = cells.filter(matches);
  shownFailures = FAILURES;
  showFailures();
  showGroups();
  byId("search").value = chosen.words;
  byId("only").checked = chosen.only;
  for (const chip of byId("outcomes").children) chip.setAttribute("aria-pressed", String(chosen.outcomes.has(chip.dataset.mark)));
  for (const one of document.querySelectorAll("button.value")) {
    const mine = chosen.value && index.axes[chosen.value[0]].name === one.dataset.axis && chosen.value[1] === one.dataset.value;
    one.setAttribute("aria-pressed", String(Boolean(mine)));
  }
  byId("shown").textContent = matching.length === cells.length ? `${cells.length} cells` : `${matching.length} of ${cells.length} cells`;
  byId("none").hidden = matching.length > 0 || cells.length === 0;
  byId("clear").hidden = !(chosen.words || chosen.outcomes.size || chosen.only || chosen.value);
}

function pick(button) {
  const axis = index.axes.findIndex((one) => one.name === button.dataset.axis);
  const same = chosen.value && chosen.value[0] === axis && chosen.value[1] === button.dataset.value;
  chosen.value = same ? null : [axis, button.dataset.value];
  changed();
}

function start() {
  const counts = new Map();
  for (const cell of cells) counts.set(cell.mark, (counts.get(cell.mark) || 0) + 1);
  for (const word of index.words.filter((one) => counts.has(one))) {
    const toggle = () => {
      if (!chosen.outcomes.delete(word)) chosen.outcomes.add(word);
      changed();
    };
    const key = make("span", { class: `key tone-${toneOf(word)}` }, glyphOf(word));
    byId("outcomes").append(make("button", { type: "button", class: "chip", "data-mark": word, on: { click: toggle } }, key, `${word} `, make("b", {}, String(counts.get(word)))));
  }
  byId("axis").append(...index.axes.map((axis, place) => make("option", { value: place }, axis.name)));
  byId("axis").addEventListener("change", () => {
    chosen.axis = Number(byId("axis").value);
    showGroups();
  });
  byId("search").addEventListener("input", () => {
    chosen.words = byId("search").value;
    changed();
  });
  byId("only").addEventListener("change", () => {
    chosen.only = byId("only").checked;
    changed();
  });
  byId("clear").addEventListener("click", () => {
    Object.assign(chosen, { words: "", outcomes: new Set(), only: false, value: null });
    changed();
  });
  byId("more").addEventListener("click", () => {
    shownFailures += FAILURES;
    showFailures();
  });
  for (const button of document.querySelectorAll("button.value")) button.addEventListener("click", () => pick(button));
  document.addEventListener("click", reveal);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== byId("search")) {
      event.preventDefault();
      byId("search").focus();
    }
  });
  changed();
}

start();
