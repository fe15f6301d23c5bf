// How long each bug lived: a bar for the state by the sources, a sign on it for the state by running.
const LIFE_HEIGHT = 26;
const lifeRows = [];

function lifeStep() {
  const room = byId("life-section").clientWidth - 2;
  const names = room < 640 ? 112 : 230;
  return Math.max(40, Math.min(104, Math.floor((room - names - 250) / index.releases.length)));
}

function lifeBars(toggle, step) {
  const bars = [];
  let start = 0;
  const { on } = toggle.life;
  for (let place = 1; place <= on.length; place += 1) {
    if (place < on.length && on[place].source === on[start].source) continue;
    const [left, width] = [start * step, (place - start) * step];
    const state = on[start].source;
    if (state === "buggy") bars.push(draw("rect", { x: left + 3, y: 6, width: width - 6, height: 14, rx: 3, class: "bar-bug" }));
    else if (state === "fixed") bars.push(draw("rect", { x: left + 3, y: 11, width: width - 6, height: 4, rx: 2, class: "bar-fix" }));
    else if (state === "stale") bars.push(draw("rect", { x: left + 3, y: 6, width: width - 6, height: 14, rx: 3, class: "bar-stale" }));
    else bars.push(draw("line", { x1: left + 6, x2: left + width - 4, y1: 13, y2: 13, class: "bar-absent" }));
    start = place;
  }
  return bars;
}

function lifeSign(lived, x) {
  const parts = [];
  if (lived.differs) parts.push(draw("circle", { cx: x, cy: 13, r: 11.5, class: "ring" }));
  if (lived.found === "buggy") parts.push(draw("path", { d: `M${x} 6.5 l6.5 11.5 h-13 z`, class: "sign-bug" }));
  if (lived.found === "fixed") parts.push(draw("circle", { cx: x, cy: 13, r: 5, class: "sign-fix" }));
  return parts;
}

function lifeWords(lived) {
  const source = { buggy: "has the bug", fixed: "has the fix", absent: "without this code" }[lived.source] || lived.source || "unknown";
  const found = { buggy: "running found the bug", fixed: "running found the fix" }[lived.found] || "not run";
  return `${lived.release}: by its sources ${source}; ${found}${lived.differs ? ": THEY DIFFER" : ""}`;
}

function lifeRow(toggle, step) {
  const { on, span, ran } = toggle.life;
  const width = on.length * step;
  const words = on.map(lifeWords).join(". ");
  const picture = draw("svg", { width, height: LIFE_HEIGHT, viewBox: `0 0 ${width} ${LIFE_HEIGHT}`, role: "img", "aria-label": `${toggle.id}. ${words}` }, ...lifeBars(toggle, step));
  on.forEach((lived, place) => {
    const slot = draw("g", { class: "slot" }, draw("title"), draw("rect", { x: place * step, y: 0, width: step, height: LIFE_HEIGHT, class: "hit" }), ...lifeSign(lived, (place + 0.5) * step));
    slot.firstChild.textContent = lifeWords(lived);
    slot.addEventListener("click", () => {
      const spot = spots.find((one) => one.toggle === toggle && index.columns[one.column].release === lived.release);
      if (spot) openSpot(spot);
    });
    picture.append(slot);
  });
  const differing = on.filter((lived) => lived.differs).length;
  const text = span ? `bug in ${span}` : ran ? "no bug found" : "not run";
  return make("div", { class: "life-row" },
    make("span", { class: "id", title: toggle.title }, toggle.id), picture,
    make("span", { class: "notes" }, text, differing ? make("b", { class: "differs" }, ` ≠ ${differing}`) : ""));
}

function lifeAxis(step) {
  const width = index.releases.length * step;
  const axis = draw("svg", { width, height: 20, viewBox: `0 0 ${width} 20`, "aria-hidden": "true" });
  index.releases.forEach((release, place) => {
    const name = step < 52 ? release.replace(/^0\.5/, "") : release;
    const text = draw("text", { x: (place + 0.5) * step, y: 14, class: "axis" });
    text.textContent = name;
    axis.append(text);
  });
  return make("div", { class: "life-row axis-row" }, make("span", {}), axis, make("span", {}));
}

function drawLife() {
  const some = index.releases.length > 1 && toggles.some((toggle) => toggle.life.ran);
  byId("life-section").hidden = !some;
  if (!some) return;
  const step = lifeStep();
  lifeRows.length = 0;
  byId("life").replaceChildren(lifeAxis(step));
  for (const toggle of toggles) {
    const row = lifeRow(toggle, step);
    lifeRows.push([toggle, row]);
    byId("life").append(row);
  }
  filterLife();
}

function filterLife() {
  const seen = new Set(spots.filter((spot) => !spot.row.hidden).map((spot) => spot.toggle));
  for (const [toggle, row] of lifeRows) row.hidden = !seen.has(toggle);
}

function lifeLegend() {
  const small = (...inside) => draw("svg", { width: 28, height: LIFE_HEIGHT, viewBox: `0 0 28 ${LIFE_HEIGHT}`, "aria-hidden": "true" }, ...inside);
  const entries = [
    [small(draw("rect", { x: 0, y: 6, width: 28, height: 14, rx: 3, class: "bar-bug" })), "sources: the bug"],
    [small(draw("rect", { x: 0, y: 11, width: 28, height: 4, rx: 2, class: "bar-fix" })), "sources: the fix"],
    [small(draw("line", { x1: 2, x2: 28, y1: 13, y2: 13, class: "bar-absent" })), "no such code"],
    [small(...lifeSign({ found: "buggy" }, 14)), "running: the bug"],
    [small(...lifeSign({ found: "fixed" }, 14)), "running: the fix"],
    [small(...lifeSign({ differs: "x" }, 14)), "they differ"],
  ];
  byId("life-legend").append(...entries.map(([picture, words]) => make("li", {}, picture, words)));
}

function bar(list, name, title, parts, longest, words) {
  const line = make("span", { class: "bar", "aria-hidden": "true" });
  for (const [kind, value] of parts) {
    const piece = make("span", { class: kind });
    piece.style.width = `${(100 * value) / longest}%`;
    line.append(piece);
  }
  list.append(make("li", {}, make("span", { class: "name", title }, name), line, make("span", { class: "took" }, words)));
}

function drawTimes() {
  const longest = Math.max(0.001, ...index.columns.map((column) => column.seconds));
  for (const column of index.columns) {
    const work = Math.max(0, column.seconds - column.start);
    bar(byId("release-times"), column.label, "", [["start", column.start], ["work", work]], longest, `${seconds(column.seconds)}, ${seconds(column.start)} to start`);
  }
  const slowest = Math.max(0.001, ...index.slowest.map((guard) => guard.seconds + guard.overhead));
  for (const guard of index.slowest) {
    const name = guard.guard.split("::").slice(1).join("::") || guard.guard;
    const cells = `${guard.cells} ${guard.cells === 1 ? "cell" : "cells"}`;
    bar(byId("guard-times"), name, guard.guard, [["work", guard.seconds], ["start", guard.overhead]], slowest, `${seconds(guard.seconds)} in ${cells}`);
  }
  byId("times-section").hidden = !index.columns.length;
}
