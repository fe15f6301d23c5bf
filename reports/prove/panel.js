// The side panel: the details of one box, read from its JSON when the box is opened.
const panel = byId("panel");
let openedSpot = null;

function readDetail(number) {
  return JSON.parse(byId(`detail-${number}`).textContent);
}

function openSpot(spot) {
  openedSpot = spot;
  setCurrent(spot);
  byId("panel-body").replaceChildren(...contents(spot));
  byId("panel-body").scrollTop = 0;
  byId("status").textContent = "";
  if (!panel.open) panel.showModal();
  byId("panel-title").focus();
  writeHash();
}

function contents(spot) {
  const { toggle } = spot;
  const column = index.columns[spot.column];
  const box = toggle.boxes[spot.column];
  const detail = readDetail(box.detail);
  const order = Object.keys(index.marks);
  detail.cells.sort((one, other) => order.indexOf(one.mark) - order.indexOf(other.mark));
  const cells = spot.guard ? detail.cells.filter((cell) => cell.guard === spot.guard.id) : detail.cells;
  const mark = spot.guard ? spot.guard.mark : box.mark;
  const facts = make("p", { class: "panel-facts" }, `${toggle.family} · ${toggle.symptom}`);
  for (const number of toggle.upstream) {
    const link = `https://github.com/sgl-project/sglang/pull/${number}`;
    facts.append(" · ", make("a", { href: link, rel: "noreferrer" }, `#${number}`));
  }
  const known = index.marks[mark];
  return [
    make("h2", { id: "panel-title", tabindex: "-1" }, make("span", { class: "id" }, toggle.id), ` on ${column.release}, ${column.device}`),
    make("p", { class: "panel-story" }, toggle.title),
    facts,
    toggle.why ? make("p", { class: "panel-why" }, toggle.why) : null,
    toggle.proven.length ? make("p", { class: "panel-facts" }, `Recorded as proven on ${toggle.proven.join("; ")}.`) : null,
    make("div", { class: `answer tone-${toneOf(mark)}` }, make("b", {}, `${glyphOf(mark)} ${mark}`), ` ${known ? known.meaning : ""}`),
    make("p", { class: "panel-state" }, "By its sources this release is ", make("b", {}, box.state || "unknown"), stateMeans(box.state)),
    box.expected ? make("p", { class: "reason" }, `No guard, as listed: ${box.expected}`) : null,
    ...cells.map((cell) => guardPart(cell, cells.length <= 3 || !isGood(cell.mark))),
    ...asIs(spot.guard ? detail.asis.filter((cell) => cell.guard === spot.guard.id) : detail.asis),
    detail.patch ? patchPart(detail.patch, box.state) : null,
  ].filter(Boolean);
}

function stateMeans(state) {
  const means = {
    fixed: ": it has the fix, which the reverted side takes out.",
    buggy: ": it lacks the fix, which the applied side puts in.",
    absent: ": it does not have the code.",
    stale: ": it has the code in a form that the toggle does not know.",
  };
  return index.kind === "lifecycle" && state !== "absent" && state !== "stale" ? "; nothing was toggled." : means[state] || ".";
}

function guardPart(cell, open) {
  const [file, ...name] = cell.guard.split("::");
  return make("details", { class: "guard-part", open },
    make("summary", {},
      make("span", { class: `key tone-${toneOf(cell.mark)}` }, `${glyphOf(cell.mark)} ${cell.mark}`),
      make("span", { class: "guard-name" }, name.join("::") || file)),
    make("p", { class: "guard-file" }, file + cell.moment),
    cell.why ? make("p", { class: "reason" }, cell.why) : null,
    ...cell.sides.map(sidePart));
}

function asIs(cells) {
  if (!cells.length) return [];
  return [make("h3", {}, "The release as it is, nothing toggled"), ...cells.map((cell) => guardPart(cell, !isGood(cell.mark)))];
}

function sidePart(side) {
  const { right } = side;
  const wanted = !side.wanted || right ? "" : side.side === "as is" ? `by the sources it should have ${side.wanted}` : `it should have ${side.wanted}`;
  const ran = side.reach ? `its code ran ${times(side.reach)}` : "its code never ran";
  const apart = side.overhead ? ` + ${seconds(side.overhead)} to run it apart` : "";
  const part = make("div", { class: "side-part" },
    make("p", { class: "side-head" },
      make("b", { class: "side-name" }, side.means),
      make("span", { class: `state ${right ? "right" : "wrong"}` }, `${right ? "✓" : "✕"} ${side.outcome}`),
      wanted ? make("span", { class: "wanted" }, wanted) : null,
      make("span", { class: side.reach ? "reach" : "reach never" }, ran),
      make("span", { class: "took" }, seconds(side.seconds) + apart)),
    side.left ? make("p", { class: "reason" }, `It left ${side.left} ${side.left === 1 ? "process" : "processes"} behind, since ended.`) : null,
    side.again ? make("p", { class: "reason" }, side.again) : null,
    side.headline ? make("p", { class: "headline" }, side.headline) : null,
    side.example ? make("pre", { class: "example", tabindex: "0", "aria-label": "counterexample" }, side.example) : null);
  if (side.replay && right && side.outcome === "passed") {
    part.append(make("details", { class: "fold" }, make("summary", {}, "run it again"), replayPart(side.replay)));
  } else if (side.replay) part.append(replayPart(side.replay));
  for (const [title, text] of [["traceback", side.detail], ["output", side.output]]) {
    if (text) part.append(make("details", { class: "fold" }, make("summary", {}, title), make("pre", { tabindex: "0" }, text)));
  }
  return part;
}

function replayPart(line) {
  const code = make("code", {}, line);
  const button = make("button", { type: "button", class: "plain copy", "aria-label": "copy the replay line" }, "copy");
  button.addEventListener("click", async () => {
    const done = await copy(line, code);
    button.textContent = done ? "copied" : "select it";
    byId("status").textContent = done ? "replay line copied" : "this browser does not let a page copy";
    setTimeout(() => { button.textContent = "copy"; }, 1600);
  });
  return make("div", { class: "replay" }, make("span", { class: "hidden" }, "replay"), code, button);
}

async function copy(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The clipboard is refused. The fallback copies a selection, which stays if that fails too.
    getSelection().selectAllChildren(element);
    return document.execCommand("copy");
  }
}

function patchPart(patch, state) {
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  const lines = patch.replace(/\n$/, "").split("\n").map((line) => {
    const header = line.startsWith("+++ ") || line.startsWith("--- ");
    return make("span", { class: `diff ${header ? "file" : kinds[line[0]] || "same"}` }, `${line}\n`);
  });
  const title = { fixed: "The patch that reverts the fix", buggy: "The patch that applies the fix" }[state] || "The patch";
  return make("section", { class: "patch" }, make("h3", {}, title), make("pre", { tabindex: "0" }, ...lines));
}

function step(by) {
  const seen = spots.filter((spot) => !spot.row.hidden && spot.matches && (spot.marks[0] !== "absent"));
  if (!seen.length) return;
  const place = seen.indexOf(openedSpot);
  openSpot(seen[(Math.max(place, by > 0 ? -1 : 0) + by + seen.length) % seen.length]);
}

function startPanel() {
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("close").addEventListener("click", () => panel.close());
  panel.addEventListener("click", (event) => { if (event.target === panel) panel.close(); });
  panel.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "j") step(1);
    if (event.key === "k") step(-1);
  });
  panel.addEventListener("close", () => {
    const spot = openedSpot;
    openedSpot = null;
    writeHash();
    if (spot && !spot.row.hidden) spot.button.focus();
    else byId("search").focus();
  });
}
