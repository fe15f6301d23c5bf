// What every page has: the choice of a theme, and a filter above each long table.
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
