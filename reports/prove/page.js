// Filters, the address, and the start of the page.
const chosen = { words: "", family: "", marks: new Set(), only: false };

function matches(spot) {
  if (chosen.family && spot.toggle.family !== chosen.family) return false;
  if (chosen.only && spot.marks.every(isGood)) return false;
  if (chosen.marks.size && !spot.marks.some((mark) => chosen.marks.has(mark))) return false;
  return chosen.words.toLowerCase().split(/\s+/).every((word) => spot.words.includes(word));
}

function applyFilters() {
  const rows = new Map();
  for (const spot of spots) {
    spot.matches = matches(spot);
    spot.button.classList.toggle("dim", !spot.matches);
    rows.set(spot.row, rows.get(spot.row) || spot.matches);
  }
  let shown = 0;
  for (const [row, there] of rows) {
    row.hidden = !there;
    if (there) shown += 1;
  }
  for (const body of byId("matrix").querySelectorAll("tbody")) body.hidden = ![...body.querySelectorAll(".line")].some((row) => !row.hidden);
  const what = index.single ? "guards" : "toggles";
  byId("shown").textContent = shown === rows.size ? `${shown} ${what}` : `${shown} of ${rows.size} ${what}`;
  byId("none").hidden = shown > 0 || rows.size === 0;
  byId("clear").hidden = !(chosen.words || chosen.family || chosen.marks.size || chosen.only);
  if (!current || current.row.hidden) setCurrent(spots.find((spot) => !spot.row.hidden && spot.matches) || null);
  filterLife();
}

function showChosen() {
  byId("search").value = chosen.words;
  byId("family").value = chosen.family;
  byId("only").checked = chosen.only;
  for (const chip of byId("verdicts").children) chip.setAttribute("aria-pressed", String(chosen.marks.has(chip.dataset.mark)));
}

function changed() {
  showChosen();
  applyFilters();
  writeHash();
}

function writeHash() {
  const parameters = new URLSearchParams();
  if (openedSpot) parameters.set("box", keyOf(openedSpot));
  if (chosen.words) parameters.set("q", chosen.words);
  if (chosen.family) parameters.set("family", chosen.family);
  if (chosen.marks.size) parameters.set("verdicts", [...chosen.marks].join(","));
  if (chosen.only) parameters.set("only", "1");
  const hash = parameters.toString();
  history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
}

function readHash() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  chosen.words = parameters.get("q") || "";
  chosen.family = parameters.get("family") || "";
  chosen.marks = new Set((parameters.get("verdicts") || "").split(",").filter((mark) => mark in index.marks));
  chosen.only = parameters.get("only") === "1";
  showChosen();
  applyFilters();
  const wanted = parameters.get("box");
  const spot = wanted && spots.find((one) => keyOf(one) === wanted);
  if (spot) {
    openSpot(spot);
    spot.button.scrollIntoView({ block: "center", inline: "center" });
  } else if (panel.open) panel.close();
}

function startFilters() {
  for (const family of index.families) byId("family").append(make("option", { value: family.name }, family.name));
  const used = new Map();
  for (const spot of spots) for (const mark of spot.marks) used.set(mark, (used.get(mark) || 0) + 1);
  for (const mark of Object.keys(index.marks)) {
    if (!used.has(mark) || mark === "not run") continue;
    const chip = make("button", { type: "button", class: "chip", "aria-pressed": "false", "data-mark": mark },
      make("span", { class: `key tone-${toneOf(mark)}`, "aria-hidden": "true" }, glyphOf(mark)), `${mark} `, make("b", {}, String(used.get(mark))));
    chip.addEventListener("click", () => {
      if (!chosen.marks.delete(mark)) chosen.marks.add(mark);
      changed();
    });
    byId("verdicts").append(chip);
  }
  byId("search").addEventListener("input", (event) => { chosen.words = event.target.value; changed(); });
  byId("family").addEventListener("change", (event) => { chosen.family = event.target.value; changed(); });
  byId("only").addEventListener("change", (event) => { chosen.only = event.target.checked; changed(); });
  byId("clear").addEventListener("click", () => {
    Object.assign(chosen, { words: "", family: "", marks: new Set(), only: false });
    changed();
    byId("search").focus();
  });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key !== "/" || typing || panel.open || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    byId("search").focus();
    byId("search").select();
  });
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && current) { event.preventDefault(); current.button.focus(); }
  });
}

drawMatrix();
startPanel();
startFilters();
lifeLegend();
drawTimes();
drawLife();
readHash();
addEventListener("hashchange", readHash);
let waiting = 0;
addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(drawLife); });
