// The window of time that all timelines share: moving it, and what is pointed at.
let queued = false;
function repaint() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; paintAll(); });
}

function paintAll() {
  const palette = colours();
  for (const panel of panels) panel.paint(palette);
}

function layoutAll(ratio = Math.min(3, devicePixelRatio || 1), width = byId("panels").clientWidth) {
  for (const panel of panels) panel.layout(Math.max(200, width), ratio);
  paintAll();
}

// Shows a window, inside of the step and never narrower than a few nanoseconds.
function show(low, high) {
  const least = Math.min(view.most, 20);
  let width = Math.min(Math.max(high - low, least), view.most);
  low = Math.min(Math.max((low + high) / 2 - width / 2, 0), view.most - width);
  view.low = low;
  view.high = low + width;
  sayWindow();
  repaint();
}

const sayWindow = () => { byId("window").textContent = `${time(view.low, 4)} to ${time(view.high, 4)}`; };

function zoom(times, around = (view.low + view.high) / 2) {
  show(around - (around - view.low) / times, around + (view.high - around) / times);
}

const move = (share) => { const by = share * (view.high - view.low); show(view.low + by, view.high + by); };

const VIEWS = {
  in: () => zoom(1.6), out: () => zoom(1 / 1.6), left: () => move(-0.3), right: () => move(0.3), all: () => show(0, view.most),
  end: () => {
    const ends = panels.map((panel) => panel.timeline.compute), last = Math.max(...panels.map((panel) => panel.timeline.makespan));
    const tail = Math.max(last - Math.min(...ends), view.most / 200);
    show(last - 1.6 * tail, last + 0.15 * tail);
  },
};

function describe(panel, hit) {
  const row = hit.row;
  if (hit.mark !== undefined) {
    return [DATA.names[hit.mark] || "gradient", `ready at ${time(row.marks[hit.mark], 4)}`];
  }
  if (hit.count > 1) {
    const what = row.kind === "launches" ? "launches" : "tasks";
    const exposed = row.kind === "launches" ? row.launches.slice(hit.index, hit.index + hit.count).reduce((sum, l) => sum + l.exposed, 0) : 0;
    const lines = [`${hit.count.toLocaleString("en")} ${what} too short to tell apart here: zoom in`, `${time(row.starts[hit.index], 4)} to ${time(row.ends[hit.index + hit.count - 1], 4)}`];
    if (exposed) lines.push(`${time(exposed)} exposed`);
    return lines;
  }
  if (row.kind === "launches") {
    const launch = row.launches[hit.index], found = members(launch.runs);
    return [
      `#${launch.number}: ${many(found.count, "member")}, ${size(launch.bytes)}`,
      found.text,
      `ready ${time(launch.ready, 4)}, start ${time(launch.start, 4)}, end ${time(launch.end, 4)}`,
      launch.exposed ? `${time(launch.exposed)} exposed: ${DATA.reasons[launch.reason]}` : "hidden behind compute",
    ];
  }
  const name = row.names ? DATA.names[row.names[hit.index]] : row.label;
  return [name, `${time(row.starts[hit.index], 4)} to ${time(row.ends[hit.index], 4)} (${time(row.ends[hit.index] - row.starts[hit.index])})`];
}

// Writes below the timelines what is chosen, with all that is known of it.
function detail(panel, hit) {
  const box = byId("details");
  if (!hit) { box.replaceChildren("Point at, tap or focus a launch: its members and times are shown here."); return; }
  if (hit.row.kind !== "launches" || hit.count > 1 || hit.mark !== undefined) {
    const [first, ...others] = describe(panel, hit);
    box.replaceChildren(make("div", {}, make("b", {}, first), panel.timeline.title), ...others.map((text) => make("div", {}, text)));
    return;
  }
  const launch = hit.row.launches[hit.index], found = members(launch.runs, 12);
  const facts = [
    ["ready", time(launch.ready, 5)], ["start", time(launch.start, 5)], ["end", time(launch.end, 5)], ["lasts", time(launch.end - launch.start)],
    ["waits", time(launch.start - launch.ready)], ["exposed", time(launch.exposed)], ["why", launch.exposed ? DATA.reasons[launch.reason] : "hidden behind compute"],
  ];
  box.replaceChildren(
    make("div", {}, make("b", {}, `Launch #${launch.number}`), `${many(found.count, "member")}, ${size(launch.bytes)} (${launch.bytes.toLocaleString("en")} bytes), ${launch.kind.join(", ")}, ${hit.row.label}, ${panel.timeline.title}`),
    make("div", { class: "facts" }, ...facts.map(([key, value]) => make("span", {}, make("i", {}, `${key} `), value))),
    make("div", { class: "soft" }, found.text + (launch.parts ? ` (${launch.parts} of them in pieces)` : "")),
  );
}

function choose(panel, hit) {
  view.chosen = hit ? { panel: panel.number, row: hit.row, index: hit.index, launch: hit.row.launches && hit.count === 1 ? hit.row.launches[hit.index] : null } : null;
  detail(panel, hit);
  markRow();
  repaint();
}

function chooseLaunch(panel, launch, near) {
  const row = panel.timeline.rows.find((one) => one.launches && one.launches.includes(launch));
  choose(panel, { row, index: row.launches.indexOf(launch), count: 1 });
  const width = Math.max(launch.end - launch.start, 1);
  if (near) show(Math.min(launch.ready, launch.start) - width, launch.end + width);
  else if (launch.start < view.low || launch.end > view.high) {
    const by = (launch.start + launch.end) / 2 - (view.low + view.high) / 2;
    show(view.low + by, view.high + by);
  }
}

// Keys: from item to item, from row to row, zoom and move.
function onKey(panel, event) {
  const { key, shiftKey } = event;
  const rows = panel.timeline.rows;
  const here = view.chosen && view.chosen.panel === panel.number ? view.chosen : null;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (key === "+" || key === "=") zoom(1.6);
  else if (key === "-" || key === "_") zoom(1 / 1.6);
  else if (key === "0" || key === "Home") VIEWS.all();
  else if (key === "End") VIEWS.end();
  else if (key === "Escape") choose(panel, null);
  else if (key === "Enter" && here && here.launch) chooseLaunch(panel, here.launch, true);
  else if (key.startsWith("Arrow") && shiftKey) move({ ArrowLeft: -0.2, ArrowRight: 0.2 }[key] || 0);
  else if (key === "ArrowLeft" || key === "ArrowRight") {
    const row = here ? here.row : rows.find((one) => one.launches) || rows[0];
    const index = here ? Math.min(Math.max(here.index + (key === "ArrowRight" ? 1 : -1), 0), row.starts.length - 1) : Math.min(firstAfter(row.ends, view.low), row.starts.length - 1);
    reach(panel, row, index);
  } else if (key === "ArrowUp" || key === "ArrowDown") {
    const from = here ? rows.indexOf(here.row) : -1;
    const row = rows[Math.min(Math.max(from + (key === "ArrowDown" ? 1 : -1), 0), rows.length - 1)];
    const now = here ? here.row.starts[here.index] : view.low;
    reach(panel, row, Math.min(firstAfter(row.ends, now), row.starts.length - 1));
  } else return;
  event.preventDefault();
}

function reach(panel, row, index) {
  if (index < 0 || !row.starts.length) return;
  if (row.launches) chooseLaunch(panel, row.launches[index]);
  else choose(panel, { row, index, count: 1 });
  const at = row.starts[index];
  if (at < view.low || at > view.high) show(at - (view.high - view.low) / 2, at + (view.high - view.low) / 2);
}

function listen(panel) {
  const canvas = panel.canvas, fingers = new Map();
  let moved = 0, spread = 0;
  const where = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  const width = () => panel.width - panel.gutter;
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.clientX);
    if (event.isTrusted) canvas.setPointerCapture(event.pointerId);
    moved = 0;
    spread = 0;
    tip();
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = where(event);
    if (!fingers.has(event.pointerId)) { point(event, x, y); return; }
    const before = fingers.get(event.pointerId);
    fingers.set(event.pointerId, event.clientX);
    if (fingers.size === 2) {
      const [a, b] = [...fingers.values()], now = Math.abs(a - b);
      if (spread > 10 && now > 10) zoom(now / spread, panel.ns((a + b) / 2 - canvas.getBoundingClientRect().left));
      spread = now;
      moved = 99;
      return;
    }
    moved += Math.abs(event.clientX - before);
    if (moved < 4) return;
    canvas.classList.add("dragging");
    const by = ((before - event.clientX) / width()) * (view.high - view.low);
    show(view.low + by, view.high + by);
  });
  const up = (event) => {
    if (!fingers.delete(event.pointerId)) return;
    canvas.classList.remove("dragging");
    if (moved < 4 && event.type === "pointerup") choose(panel, panel.at(...where(event)));
    if (fingers.size) moved = 99;
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => { tip(); if (view.hot) { view.hot = null; repaint(); } });
  canvas.addEventListener("dblclick", (event) => zoom(3, panel.ns(where(event)[0])));
  canvas.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (sideways) { move(event.deltaX / width()); event.preventDefault(); return; }
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    const times = Math.exp(-Math.max(-120, Math.min(120, event.deltaY)) / 300);
    if (times < 1 && view.high - view.low >= view.most && !event.ctrlKey) return;
    event.preventDefault();
    zoom(times, panel.ns(where(event)[0]));
    tip();
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => onKey(panel, event));

  function point(event, x, y) {
    const hit = panel.at(x, y);
    canvas.classList.toggle("pointing", Boolean(hit));
    tip(event.clientX, event.clientY, hit ? describe(panel, hit) : null);
    const launch = hit && hit.count === 1 && hit.row.launches ? hit.row.launches[hit.index] : null;
    if ((view.hot && view.hot.launch) !== launch) {
      view.hot = launch ? { panel: panel.number, launch } : null;
      repaint();
    }
  }
}

function sign(kind, colour) {
  const box = draw("svg", { width: 26, height: 18, viewBox: "0 0 26 18", "aria-hidden": "true" });
  if (kind === "exposed") {
    box.append(draw("rect", { width: 26, height: 13, fill: "var(--panel)" }), draw("rect", { y: 14, width: 26, height: 4, fill: "var(--exposed)" }));
    for (let x = -12; x < 26; x += 7) box.append(draw("path", { d: `M${x} 13L${x + 13} 0`, stroke: "var(--exposed)", "stroke-width": 1.3, fill: "none" }));
  } else if (kind === "wait") {
    box.append(draw("path", { d: "M3 9H26", stroke: "var(--soft)" }), draw("circle", { cx: 4, cy: 9, r: 2.4, fill: "var(--soft)" }));
  } else if (kind === "mark") {
    box.append(draw("rect", { y: 2, width: 26, height: 14, fill: "var(--compute)" }), draw("path", { d: "M6 9V16M13 9V16M17 9V16", stroke: "var(--mark)" }));
  } else {
    box.append(draw("rect", { y: 1, width: 26, height: 16, rx: 2, fill: colour }));
    if (kind) {
      const letter = draw("text", { x: 13, y: 13.5, "text-anchor": "middle", "font-weight": "600" }, kind);
      letter.style.fill = "var(--box-ink)";
      box.append(letter);
    }
  }
  return box;
}

function legend() {
  const used = new Set(panels.flatMap((panel) => panel.timeline.launches.map((launch) => launch.reason)));
  const words = ["hidden behind compute", "exposed: its gradient came last", "exposed: waited for the channel", "exposed: too long for the compute left", "exposed: the plan held it back"];
  if (!DATA.gradients) words[1] = "exposed: what it waits for came last";
  const entry = (picture, text) => make("span", {}, picture, text);
  const entries = [entry(sign("", "var(--compute)"), "compute")];
  if (DATA.gradients) entries.push(entry(sign("mark"), "a gradient is ready"));
  words.forEach((text, k) => { if (used.has(k)) entries.push(entry(sign(LETTERS[k], `var(${COLOURS[k]})`), `launch, ${text}`)); });
  if ([...used].some((reason) => reason > 0)) entries.push(entry(sign("exposed"), "the exposed part: nothing computes"));
  if (panels.some((panel) => panel.timeline.launches.some((launch) => launch.start > launch.ready))) entries.push(entry(sign("wait"), "ready, then waiting"));
  byId("legend").replaceChildren(...entries);
}

function startTimelines() {
  for (const [number, timeline] of DATA.timelines.entries()) panels.push(new Panel(prepare(timeline), number));
  if (!panels.length) return;
  view.most = Math.max(20, ...panels.map((panel) => panel.timeline.makespan)) * 1.015;
  view.high = view.most;
  byId("panels").replaceChildren(...panels.map((panel) => panel.figure));
  panels.forEach(listen);
  for (const button of document.querySelectorAll("[data-view]")) button.addEventListener("click", () => VIEWS[button.dataset.view]());
  legend();
  layoutAll();
  sayWindow();
}
