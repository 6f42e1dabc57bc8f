// The table of launches: sortable, and long ones only in part until all are asked for.
const FEW = 25, MOST = 5000;
const table = { panel: null, by: 0, down: false, all: false };
const launchRows = new Map();

const LAUNCH_COLUMNS = [
  ["#", (l) => l.number], ["members", (l) => members(l.runs, 0).count], ["size", (l) => l.bytes], ["kind", (l) => l.kind.join(", ")],
  ["channel", (l) => l.channel], ["ready", (l) => l.ready], ["waits", (l) => l.start - l.ready], ["start", (l) => l.start], ["end", (l) => l.end],
  ["exposed", (l) => l.exposed], ["why exposed", (l) => l.reason],
];

function cells(launch, channels) {
  const found = members(launch.runs, 2);
  const number = make("button", { type: "button", "aria-label": `Show launch ${launch.number} in its timeline` }, `#${launch.number}`);
  number.addEventListener("click", () => { chooseLaunch(table.panel, launch, true); table.panel.figure.scrollIntoView({ block: "center" }); });
  const why = launch.exposed ? [make("span", { class: `swatch r${launch.reason}`, "aria-hidden": "true" }, LETTERS[launch.reason]), DATA.reasons[launch.reason]] : [make("span", { class: "soft" }, "hidden")];
  const text = (value, kind = "figures") => make("td", { class: kind }, value);
  return [
    make("td", {}, number), text(found.count > 1 ? `${found.count.toLocaleString("en")}: ${found.text}` : found.text, "members"), text(size(launch.bytes)), text(launch.kind.join(", "), ""),
    text(channels[launch.channel].replace(/^channel /, ""), ""), text(time(launch.ready, 4)), text(time(launch.start - launch.ready)), text(time(launch.start, 4)), text(time(launch.end, 4)),
    text(time(launch.exposed)), make("td", {}, ...why),
  ];
}

function fillTable() {
  const { panel, by, down } = table;
  const value = LAUNCH_COLUMNS[by][1];
  const sorted = [...panel.timeline.launches].sort((a, b) => {
    const x = value(a), y = value(b);
    return (x < y ? -1 : x > y ? 1 : a.number - b.number) * (down ? -1 : 1);
  });
  const shown = sorted.slice(0, table.all ? MOST : FEW);
  const head = make("tr", {}, ...LAUNCH_COLUMNS.map(([name], k) => {
    const button = make("button", { type: "button" }, name);
    button.addEventListener("click", () => { table.down = table.by === k ? !table.down : k === 2 || k === 6 || k >= 9; table.by = k; fillTable(); byId("launch-table").querySelectorAll("th button")[k].focus(); });
    const figures = [2, 5, 6, 7, 8, 9].includes(k);
    return make("th", { scope: "col", "aria-sort": k === by ? (down ? "descending" : "ascending") : "none", ...(figures ? { class: "figures" } : {}) }, button);
  }));
  launchRows.clear();
  const rows = shown.map((launch) => {
    const row = make("tr", {}, ...cells(launch, panel.timeline.channels));
    launchRows.set(launch, row);
    return row;
  });
  const parts = [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Launches" }, make("table", { class: "launch-rows" }, make("thead", {}, head), make("tbody", {}, ...rows)))];
  if (sorted.length > shown.length || table.all) {
    const left = sorted.length - shown.length;
    const button = make("button", { type: "button", "aria-expanded": String(table.all) }, table.all ? `Show the first ${FEW} only` : `Show all ${many(sorted.length, "launch")}`);
    button.addEventListener("click", () => { table.all = !table.all; fillTable(); });
    parts.push(make("p", { class: "soft" }, left ? `${many(left, "launch")} more. ` : "", sorted.length > FEW ? button : ""));
  }
  byId("launch-table").replaceChildren(...parts);
  markRow();
}

function markRow() {
  for (const [launch, row] of launchRows) row.classList.toggle("chosen", Boolean(view.chosen && view.chosen.launch === launch));
}

function startLaunches() {
  if (!panels.length) return;
  const which = byId("which");
  which.replaceChildren(...panels.map((panel, k) => make("option", { value: k }, panel.timeline.title)));
  const pick = (k) => { table.panel = panels[k]; which.value = String(k); fillTable(); };
  which.addEventListener("change", () => pick(Number(which.value)));
  const last = panels.findIndex((panel) => panel.timeline.slowed);
  pick((last > 0 ? last : panels.length) - 1);
}

// The tables that are in the page already are sorted by what their cells say.
function startSorting() {
  for (const found of document.querySelectorAll("table.sortable")) {
    const heads = [...found.querySelectorAll("th")], body = found.tBodies[0];
    heads.forEach((head, k) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((one) => one.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => { const cell = row.cells[k]; return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort); };
      const rows = [...body.rows].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
      body.replaceChildren(...rows);
    }));
  }
}
