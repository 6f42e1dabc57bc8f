// Exposed time over a rule's cap, with every rule, the optimum and the bound; and the curves of regret.
function drawChart() {
  const chart = DATA.chart, place = byId("chart");
  if (!chart) return;
  const width = Math.max(280, place.clientWidth), narrow = width < NARROW, height = narrow ? 300 : 400;
  const left = narrow ? 58 : 76, right = narrow ? 10 : 150, top = 22, bottom = height - 42;
  const curve = chart.curves[chosenCurve], ranges = curve ? curve.ranges : [];
  const sizes = sizeScale(chart, left, width - right), { low, high, x } = sizes;
  const values = [chart.best, chart.bound, ...chart.rows.map((row) => row.exposed), ...ranges.map((r) => r[2])];
  const scale = axisOf(values), y = (ns) => bottom - scale.share(ns) * (bottom - top);
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chartText(chart) });
  const add = (tag, attributes, ...children) => { const element = draw(tag, attributes, ...children); svg.append(element); return element; };
  if (curve) addFlat(add, curve, sizes, top, bottom);
  for (const value of sizeTicks(low, high, true, (width - left - right) / (narrow ? 66 : 82))) {
    add("path", { class: "grid", d: `M${x(value)} ${top}V${bottom}` });
    const at = x(value);
    add("text", { class: "soft", x: Math.min(at, width - 26), y: bottom + 16, "text-anchor": "middle" }, size(value).replace(".00", ""));
  }
  for (const [ns, text] of scale.ticks) {
    add("path", { class: "grid", d: `M${left} ${y(ns)}H${width - right}` });
    add("text", { class: "soft", x: left - 7, y: y(ns) + 4, "text-anchor": "end" }, text);
  }
  add("rect", { class: "frame", x: left, y: top, width: width - left - right, height: bottom - top });
  add("text", { class: "soft", x: 0, y: 12 }, `exposed time${scale.log ? ", log scale" : ""}${scale.cut ? " (the axis does not start at 0)" : ""}`);
  const cap = curve && !curve.in_bytes ? ` in elements of ${+curve.unit.toFixed(2)} bytes` : "";
  const what = narrow ? "curve: the cap; points: mean bucket" : `${curve ? `curve: ${curve.titles[0]}'s cap${cap}; ` : ""}points: mean bucket; log scale`;
  add("text", { class: "soft", x: width - right, y: height - 6, "text-anchor": "end" }, what);
  if (curve) addCurve(add, curve, sizes, y);
  const lines = [[chart.best, "optimum", `${chart.best_title.split(",")[0]} ${time(chart.best)}`]];
  if (time(chart.bound) !== time(chart.best)) lines.push([chart.bound, "bound", `lower bound ${time(chart.bound)}`]);
  lines.forEach(([ns, kind, text], k) => {
    add("path", { class: kind, d: `M${left} ${y(ns)}H${width - right}` });
    if (!narrow) add("text", { x: width - right + 8, y: lines.length > 1 && y(lines[1][0]) - y(lines[0][0]) < 16 ? y(ns) + (k ? 13 : -5) : y(ns) + 4 }, text);
  });
  points(add, chart, x, y, { left, right: width - right, top, bottom });
  place.replaceChildren(svg);
  chartLegend(chart, lines);
}

function chartText(chart) {
  const curve = chart.curves[chosenCurve], caps = curve ? `${many(curve.plans, "plan")} of ${curve.titles[0]}'s cap, ` : "";
  return `Exposed time: ${caps}${many(chart.rows.length - 1, "rule")} as points; the best plan exposes ${time(chart.best)}, the lower bound is ${time(chart.bound)}. All numbers are in the table below.`;
}

// Points with the numbers of the table; a number that would cover another one is left to the tip.
function points(add, chart, x, y, plot) {
  const taken = [];
  const free = (box) => box[0] > plot.left && box[2] < plot.right && box[1] > plot.top && box[3] < plot.bottom && taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
  const placed = chart.rows.slice(1).map((row) => ({ row, x: x(row.size), y: y(row.exposed) }));
  for (const at of placed) taken.push([at.x - 4, at.y - 4, at.x + 4, at.y + 4]);
  const groups = [];
  for (const at of placed) {
    const group = groups.find((one) => Math.hypot(one.x - at.x, one.y - at.y) < 7);
    if (group) group.rows.push(at.row); else groups.push({ x: at.x, y: at.y, rows: [at.row] });
  }
  for (const group of groups) {
    const main = group.rows.find((row) => row.name === "ddp");
    const dot = add("circle", { class: main ? "rule default" : "rule", cx: group.x, cy: group.y, r: main ? 5.5 : 4.5 });
    const words = group.rows.flatMap((row) => [`#${row.number} ${row.title}${row.setting ? ` (${row.setting})` : ""}`, `${time(row.exposed)} exposed, ${many(row.launches, "launch")}`]);
    dot.addEventListener("pointerenter", (event) => { dot.classList.add("hot"); tip(event.clientX, event.clientY, words.slice(0, 14)); });
    dot.addEventListener("pointerleave", () => { dot.classList.remove("hot"); tip(); });
    const text = runs(group.rows.map((row) => row.number)), wide = text.length * 6.6 + 2;
    const shifts = [[0, -13], [0, 15], [wide / 2 + 9, 0], [-wide / 2 - 9, 0]];
    for (const far of [26, 40]) shifts.push([0, -far], [0, far], [wide / 2 + far / 2, -far / 1.4], [-wide / 2 - far / 2, -far / 1.4], [wide / 2 + far / 2, far / 1.4], [-wide / 2 - far / 2, far / 1.4]);
    for (const [across, down] of shifts) {
      const box = [group.x + across - wide / 2, group.y + down - 7, group.x + across + wide / 2, group.y + down + 6];
      if (!free(box)) continue;
      taken.push(box);
      if (Math.hypot(across, down) > 24) add("path", { class: "leader", d: `M${group.x} ${group.y}L${group.x + across * 0.75} ${group.y + down * 0.75}` });
      add("text", { class: "number", x: group.x + across, y: group.y + down + 4, "text-anchor": "middle" }, text);
      break;
    }
  }
}

function runs(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found[found.length - 1];
    if (last && last[1] + 1 === number) last[1] = number; else found.push([number, number]);
  }
  return found.map(([a, b]) => (b - a > 1 ? `${a}-${b}` : b > a ? `${a}, ${b}` : `${a}`)).join(", ");
}

// Exposed times upwards: from 0, or on a log scale where a few large ones would squeeze the others.
const LOG_FROM = 2.5, CUT_BELOW = 0.5, LOG_TICKS = [[1], [5, 2], [3, 7, 4], [1.5, 2.5]];
function axisOf(values, count = 6) {
  const most = Math.max(1, ...values), positive = values.filter((value) => value > 0), least = Math.min(most, ...positive);
  if (most / least > LOG_FROM) {
    const from = Math.max(least, most / 1e4) / 1.6, zero = values.some((value) => value < from) ? 0.06 : 0, decades = Math.log(most * 1.15 / from);
    const share = (ns) => (ns <= from ? zero * Math.max(ns, 0) / from : zero + (1 - zero) * Math.log(ns / from) / decades);
    const marks = zero ? [[0, "0"]] : [];
    for (const factors of LOG_TICKS) {
      for (const times of factors) {
        for (let power = Math.floor(Math.log10(from)); power <= Math.log10(most * 1.15); power++) {
          const ns = times * 10 ** power;
          if (ns >= from && ns <= most * 1.15 && marks.every(([other]) => Math.abs(share(other) - share(ns)) > 0.06)) marks.push([ns, round(ns)]);
        }
      }
      if (marks.length > 3) break;
    }
    return { log: true, cut: false, share, ticks: marks.sort((a, b) => a[0] - b[0]) };
  }
  const floor = Math.min(...values), cut = floor > most * CUT_BELOW && most > floor * 1.001, from = cut ? floor - (most - floor) * 0.25 - most * 0.002 : 0;
  const top = most + (most - from) * 0.08, steps = ticks(from, top, count), step = steps.length > 1 ? steps[1] - steps[0] : 1;
  return { log: false, cut, share: (ns) => (ns - from) / (top - from), ticks: steps.map((ns) => [ns, tickText(ns, step)]) };
}

const round = (ns) => (ns >= 1e9 ? `${ns / 1e9} s` : ns >= 1e6 ? `${ns / 1e6} ms` : ns >= 1e3 ? `${ns / 1e3} us` : `${Math.round(ns)} ns`);

function sizeTicks(low, high, inBytes, most) {
  const found = [], base = inBytes ? 2 : 10, span = Math.log(high / low) / Math.log(base);
  const every = [1, 2, 5, 10, 20].find((step) => span / step <= most) || 40;
  for (let power = Math.ceil(Math.log(low) / Math.log(base)); base ** power <= high; power++) {
    if (power >= 0 && power % every === 0) found.push(base ** power);
  }
  return found;
}

function chartLegend(chart, lines) {
  const entry = (kind, text) => {
    const box = draw("svg", { width: 26, height: 14, viewBox: "0 0 26 14", "aria-hidden": "true" });
    if (kind === "point") box.append(draw("circle", { class: "rule", cx: 13, cy: 7, r: 4.5 }));
    else if (kind === "default") box.append(draw("circle", { class: "rule default", cx: 13, cy: 7, r: 5.5 }));
    else if (kind === "flat") box.append(draw("rect", { class: "flat", width: 26, height: 14 }));
    else box.append(draw("path", { class: kind, d: "M0 7H26" }));
    return make("span", {}, box, text);
  };
  const curve = chart.curves[chosenCurve], entries = [];
  if (curve) {
    const cuts = curve.cuts ? ", which cuts collectives" : "";
    entries.push(entry("curve", curve.sampled ? `${curveTitle(curve)}: ${curve.plans} caps that were tried` : `${curveTitle(curve)} with any single cap${cuts} (${many(curve.plans, "plan")})`));
    entries.push(entry("best-cap", `${curve.sampled ? "best of these" : "best cap"}: ${curve.best_text}`));
    if (curve.flat.length) entries.push(entry("flat", `step at most 1% longer: ${curve.flat_text}`));
  }
  entries.push(entry("point", "a rule, numbered as in the table"));
  if (chart.rows.some((row) => row.name === "ddp")) entries.push(entry("default", "PyTorch DDP's default"));
  for (const [, kind, text] of lines) entries.push(entry(kind, text));
  byId("chart-legend").replaceChildren(...entries);
}

const KNOBS = { alpha: "start-up latency", bandwidth: "bandwidth", compute: "compute speed" };

function drawStability() {
  const place = byId("stability-charts");
  if (!DATA.stability) return;
  place.className = "small-charts";
  const known = Object.entries(DATA.stability).filter(([, found]) => found.regrets.length);
  const boxes = known.map(([knob]) => make("div", {}, make("h3", {}, `Another ${KNOBS[knob]}: what keeping the plan costs`)));
  place.replaceChildren(...boxes);
  const width = Math.max(240, Math.min(560, Math.floor(Math.min(...boxes.map((box) => box.clientWidth)))));
  known.forEach(([knob, found], k) => boxes[k].append(regretChart(found, width, KNOBS[knob])));
}

function regretChart(found, width, name) {
  const height = 170, left = 44, right = 12, top = 14, bottom = 132;
  const [low, high] = found.searched, x = (factor) => left + (Math.log(factor / low) / Math.log(high / low)) * (width - left - right);
  const most = Math.max(0.001, ...found.regrets.map((regret) => regret[2])) * 1.1, y = (share) => bottom - (share / most) * (bottom - top);
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Regret of keeping the plan over ${name}: at most ${(most / 1.1 * 100).toFixed(2)}% of the step` });
  const add = (tag, attributes, ...children) => svg.append(draw(tag, attributes, ...children));
  if (found.optimal) add("rect", { class: "flat", x: x(found.optimal[0]), y: top, width: Math.max(1, x(found.optimal[1]) - x(found.optimal[0])), height: bottom - top });
  for (const factor of [0.1, 0.2, 0.5, 1, 2, 5, 10]) {
    if (factor < low || factor > high) continue;
    add("path", { class: "grid", d: `M${x(factor)} ${top}V${bottom}` });
    add("text", { class: "soft", x: x(factor), y: bottom + 15, "text-anchor": "middle" }, `${factor}x`);
  }
  const marks = ticks(0, most * 100, 3);
  for (const share of marks) {
    add("path", { class: "grid", d: `M${left} ${y(share / 100)}H${width - right}` });
    add("text", { class: "soft", x: left - 5, y: y(share / 100) + 4, "text-anchor": "end" }, `${+share.toPrecision(2)}%`);
  }
  add("path", { class: "curve", d: found.regrets.map((regret, k) => `${k ? "L" : "M"}${x(regret[0]).toFixed(1)} ${y(regret[2]).toFixed(1)}`).join("") });
  add("text", { class: "soft", x: width - right, y: height - 6, "text-anchor": "end" }, "times what was assumed; shaded: still optimal");
  return svg;
}
