// The curves of all rules with a cap: which one the large chart shows, and each of them small.
let chosenCurve = 0;
const curveTitle = (curve) => curve.titles.join(" = ");

function startCurves() {
  const curves = DATA.chart ? DATA.chart.curves : [], select = byId("curve");
  select.parentElement.parentElement.hidden = curves.length < 2;
  curves.forEach((curve, k) => select.append(make("option", { value: k }, curveTitle(curve))));
  select.addEventListener("change", () => { chosenCurve = Number(select.value); drawChart(); });
}

// The sizes that all charts show, in bytes, on a log scale.
function sizeScale(chart, left, right) {
  const sizes = chart.rows.map((row) => Math.max(row.size, 1));
  let low = Math.min(...sizes) / 2, high = Math.max(...sizes) * 2;
  for (const { ranges, unit } of chart.curves) {
    if (!ranges.length) continue;
    low = Math.min(low, (ranges[0][0] > 1 ? ranges[0][0] / 2 : (ranges[0][1] || 1) / 8) * unit);
    high = Math.max(high, ranges[ranges.length - 1][0] * 2 * unit);
  }
  low = Math.max(low, 0.5);
  high = Math.max(high, low * 16);
  const x = (bytes) => left + (Math.log(Math.min(Math.max(bytes === null ? high : bytes, low), high) / low) / Math.log(high / low)) * (right - left);
  return { low, high, x, cap: (curve, cap) => x(cap === null ? null : cap * curve.unit) };
}

// A curve's steps; one that was sampled goes from value to value.
function curvePath(curve, sizes, y) {
  let path = "", last = null;
  for (const [first, end, exposed] of curve.ranges) {
    const from = sizes.cap(curve, first).toFixed(1), at = y(exposed).toFixed(1);
    path += last === null ? `M${from} ${at}` : curve.sampled ? `L${from} ${at}` : `L${from} ${last}V${at}`;
    if (!curve.sampled) path += `H${sizes.cap(curve, end === null ? null : end + 1).toFixed(1)}`;
    last = at;
  }
  return path;
}

// From where to where a range of caps goes; its last value is part of it.
const capEnds = (curve, sizes, first, last) => [sizes.cap(curve, first), sizes.cap(curve, last === null ? null : last + 1)];

// The bands of caps that are nearly as good.
function addFlat(add, curve, sizes, top, bottom) {
  for (const [first, last] of curve.flat) {
    const [from, until] = capEnds(curve, sizes, first, last);
    add("rect", { class: "flat", x: from, y: top, width: Math.max(1, until - from), height: bottom - top });
  }
}

// The curve and its best caps.
function addCurve(add, curve, sizes, y) {
  add("path", { class: "curve", d: curvePath(curve, sizes, y) });
  for (const [first, last] of [curve.best, ...curve.equal]) {
    const [from, until] = capEnds(curve, sizes, first, last), middle = (from + until) / 2, half = Math.max(until - from, 6) / 2;
    add("path", { class: "best-cap", d: `M${middle - half} ${y(curve.best[2])}H${middle + half}` });
  }
}

function drawCurves() {
  const chart = DATA.chart, place = byId("curves");
  if (!chart || chart.curves.length < 2) return;
  const boxes = chart.curves.map((curve, k) => {
    const show = make("button", { type: "button", class: "noprint", "aria-label": `Show the curve of ${curveTitle(curve)} in the large chart` }, "Enlarge");
    show.addEventListener("click", () => {
      byId("curve").value = String(chosenCurve = k);
      drawChart();
      byId("chart").scrollIntoView({ block: "nearest" });
    });
    const best = `${curve.sampled ? "best tried" : "best"}: ${curve.best_text}, ${time(curve.best[2])} exposed`;
    return make("div", {}, make("div", { class: "head" }, make("h3", {}, curveTitle(curve)), show), make("p", { class: "soft small" }, best));
  });
  const help = make("p", { class: "soft small whole" }, "Every rule with a cap, on one scale. Thick: its best caps. Point: the rule as it comes, at its mean bucket. Dashed: the best plan. Shaded: the step is at most 1% longer than with the rule's best cap.", chart.limited ? " Caps whose plans break a limit are drawn, too." : "");
  place.replaceChildren(help, ...boxes);
  const width = Math.max(220, Math.min(480, Math.floor(Math.min(...boxes.map((box) => box.clientWidth)))));
  // What has no curve, or cuts collectives ever smaller, would only make the others flat.
  const rows = chart.rows.filter((row) => chart.curves.some((curve) => curve.names.includes(row.name)));
  const scale = axisOf([chart.best, ...rows.map((row) => row.exposed), ...chart.curves.flatMap((curve) => (curve.cuts ? [] : curve.ranges.map((range) => range[2])))], 4);
  chart.curves.forEach((curve, k) => boxes[k].append(smallCurve({ ...chart, rows }, curve, scale, width)));
}

function smallCurve(chart, curve, scale, width) {
  const height = 150, left = 52, right = width - 8, top = 8, bottom = 128;
  const sizes = sizeScale(chart, left, right), y = (ns) => bottom - scale.share(ns) * (bottom - top);
  const text = `Exposed time over the cap of ${curveTitle(curve)}: at best ${time(curve.best[2])}, where the best plan exposes ${time(chart.best)}`;
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": text });
  const add = (tag, attributes, ...children) => { const element = draw(tag, attributes, ...children); svg.append(element); return element; };
  addFlat(add, curve, sizes, top, bottom);
  for (const bytes of sizeTicks(sizes.low, sizes.high, true, (right - left) / 74)) {
    add("path", { class: "grid", d: `M${sizes.x(bytes)} ${top}V${bottom}` });
    add("text", { class: "soft", x: Math.min(sizes.x(bytes), right - 22), y: bottom + 15, "text-anchor": "middle" }, size(bytes).replace(".00", ""));
  }
  let above = Infinity;
  for (const [ns, label] of scale.ticks) {
    add("path", { class: "grid", d: `M${left} ${y(ns)}H${right}` });
    if (above - y(ns) < 14) continue;
    add("text", { class: "soft", x: left - 5, y: y(ns) + 4, "text-anchor": "end" }, label);
    above = y(ns);
  }
  add("rect", { class: "frame", x: left, y: top, width: right - left, height: bottom - top });
  // An element of its own cuts off what lies above.
  const inside = draw("svg", { x: left, y: top, width: right - left, height: bottom - top, viewBox: `${left} ${top} ${right - left} ${bottom - top}` });
  svg.append(inside);
  addCurve((tag, attributes) => inside.append(draw(tag, attributes)), curve, sizes, y);
  add("path", { class: "optimum", d: `M${left} ${y(chart.best)}H${right}` });
  for (const row of chart.rows) {
    if (!curve.names.includes(row.name)) continue;
    add("circle", { class: row.name === "ddp" ? "rule default" : "rule", cx: sizes.x(row.size), cy: y(row.exposed), r: 4.5 });
  }
  return svg;
}
