// What every page has: the choice of a theme, rows that open, and a filter above each long table.
const THEMES = ["auto", "light", "dark"];

function storedTheme(value) {
  try {
    if (value !== undefined) localStorage.setItem("unfix-theme", value);
    return localStorage.getItem("unfix-theme");
  } catch {
    return null; // A page from a sandbox has no storage; the theme then lasts as long as the page.
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = `theme: ${name}`;
}

setTheme(THEMES.includes(storedTheme()) ? storedTheme() : "auto");
document.getElementById("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  setTheme(next);
  storedTheme(next);
});

// A click anywhere in a row follows its first link; what is folded opens as a link leads to it,
// and a link that begins with #filter: fills the filter of the last table.
document.addEventListener("click", ({ target }) => {
  const clicked = target.closest("a, button, input, label, summary");
  const link = clicked || (String(getSelection()) ? null : target.closest("tr")?.querySelector("a"));
  if (link && link !== clicked) link.click();
  else if (link?.hash?.startsWith("#filter:")) {
    const input = [...document.querySelectorAll(".filter input")].at(-1);
    if (input) input.value = decodeURIComponent(link.hash.slice(8));
    input?.dispatchEvent(new Event("input"));
    document.querySelector("section:last-of-type").scrollIntoView();
  }
  else if (link?.hash) document.getElementById(decodeURIComponent(link.hash.slice(1)))?.closest("details")?.setAttribute("open", "");
});

// A long name or path breaks between its words, not inside of one.
for (const cell of document.querySelectorAll("td, th, .name")) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) {
    const parts = text.data.split(/(?<=[/._:])(?=[A-Za-z])|(?<=[a-z\d])(?=[A-Z])/);
    if (parts.length > 1) text.replaceWith(...parts.flatMap((part) => [part, document.createElement("wbr")]).slice(0, -1));
  }
}

for (const box of document.querySelectorAll(".tall")) {
  const input = Object.assign(document.createElement("input"), { type: "search", placeholder: "filter", ariaLabel: `Filter ${box.ariaLabel}` });
  const shown = document.createElement("span");
  const rows = [...box.querySelectorAll("tbody tr")];
  const filter = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    const count = rows.filter((row) => !row.hidden).length;
    shown.textContent = count === rows.length ? `${count} rows` : `${count} of ${rows.length} rows`;
  };
  input.addEventListener("input", filter);
  const line = Object.assign(document.createElement("p"), { className: "filter" });
  line.append(input, shown);
  box.before(line);
  filter();
}
