// Helpers that build the page. Text is always set as text, never as HTML.
const byId = (id) => document.getElementById(id);
const index = JSON.parse(byId("index").textContent);

function make(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [kind, does] of Object.entries(value)) element.addEventListener(kind, does);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inside.filter((one) => one !== null && one !== undefined && one !== ""));
  return element;
}

function draw(tag, attributes = {}, ...inside) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

function seconds(number) {
  if (number <= 0) return "0 s";
  if (number < 0.0995) return `${Math.round(number * 1000)} ms`;
  if (number < 1) return `${Number(number.toPrecision(2))} s`;
  if (number < 10) return `${number.toFixed(1)} s`;
  if (number < 120) return `${Math.round(number)} s`;
  if (number < 7200) return `${Math.floor(number / 60)} min ${Math.floor(number % 60)} s`;
  return `${Math.floor(number / 3600)} h ${Math.floor((number % 3600) / 60)} min`;
}

const times = (number) => (number === 1 ? "once" : `${number} times`);
const toneOf = (mark) => (index.marks[mark] || { tone: "death" }).tone;
const glyphOf = (mark) => (index.marks[mark] || { glyph: "!" }).glyph;
const isGood = (mark) => Boolean(index.marks[mark] && index.marks[mark].good);
const toggles = index.families.flatMap((family) => family.toggles);
