// Starts everything, and redraws what depends on the window's width or the colours.
function setTheme(theme) {
  const dark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = byId("theme");
  button.textContent = `Colours: ${theme}`;
  button.setAttribute("aria-label", `Colours: ${theme === "system" ? "as the system" : theme}`);
  button.dataset.theme = theme;
  if (panels.length) paintAll();
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

const themes = ["system", "light", "dark"];
const wanted = location.hash.slice(1);
setTheme(themes.includes(wanted) ? wanted : "system");
byId("theme").addEventListener("click", () => setTheme(themes[(themes.indexOf(byId("theme").dataset.theme) + 1) % themes.length]));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (byId("theme").dataset.theme === "system") setTheme("system"); });

const missing = { plan: !DATA.chart, timelines: !DATA.timelines.length };
for (const section of document.querySelectorAll("[data-part]")) section.hidden = missing[section.dataset.part];
for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));

startTimelines();
startLaunches();
startSorting();
startWhatIf();
startCurves();
drawChart();
drawCurves();
drawStability();

let lastWidth = document.documentElement.clientWidth;
addEventListener("resize", () => {
  const width = document.documentElement.clientWidth;
  if (width === lastWidth) return;
  lastWidth = width;
  layoutAll();
  drawChart();
  drawCurves();
  drawStability();
});

// On paper: light, and sharp.
let shownTheme = "system";
addEventListener("beforeprint", () => {
  shownTheme = byId("theme").dataset.theme;
  setTheme("light");
  for (const found of document.querySelectorAll("details")) found.open = true;
  layoutAll(3, 980);
});
addEventListener("afterprint", () => { setTheme(shownTheme); layoutAll(); });
