// The what-if panel: sliders that snap to what was computed.
function startWhatIf() {
  const data = DATA.what_if, place = byId("what-if-panel");
  if (!data) return;
  const one = data.factors.indexOf(1), at = [one, one, one];
  const points = new Map(data.points.map((point) => [point[0].join(), point]));
  const longestOf = (point) => Math.max(1, point[2], ...(point[3] ? [point[3][0]] : []), ...point[5].filter(Boolean).map((plan) => plan[0]));
  const nominal = points.get(at.join());
  let longest = 1;
  const names = ["Start-up latency", "Bandwidth", "Compute speed"];
  const outputs = [], inputs = [];
  const value = (k) => {
    const factor = data.factors[at[k]], label = `${data.labels[at[k]]} x`, network = data.network;
    if (k === 0 && network) return `${label} = ${(network.alpha_us * factor).toPrecision(3)} us`;
    if (k === 1 && network) return `${label} = ${(network.bandwidth_gb_s * factor).toPrecision(3)} GB/s`;
    return label;
  };
  const result = make("div", { "aria-live": "polite" });
  const sliders = names.map((name, k) => {
    const output = make("output", {}), input = make("input", { type: "range", min: 0, max: data.factors.length - 1, step: 1, value: one, "aria-label": name });
    input.addEventListener("input", () => {
      at[k] = Number(input.value);
      if (!data.combined) at.forEach((_, other) => { if (other !== k) at[other] = one; });
      show();
    });
    outputs.push(output);
    inputs.push(input);
    return make("div", {}, make("label", {}, name, output, input), make("div", { class: "ticks", "aria-hidden": "true" }, ...data.labels.map((label) => make("span", {}, label))));
  });
  const reset = make("button", { type: "button" }, "As it is");
  reset.addEventListener("click", () => { at.fill(one); show(); });
  place.replaceChildren(make("div", { class: "sliders" }, ...sliders), make("div", { class: "bar" }, reset), result);

  function bar(title, text, compute, total) {
    const track = make("div", { class: "track" }), work = make("div", { class: "work" }), shown = make("div", { class: "shown" });
    work.style.width = `${(100 * Math.min(compute, total)) / longest}%`;
    shown.style.width = `${(100 * Math.max(0, total - compute)) / longest}%`;
    shown.hidden = total <= compute;
    track.append(work, shown);
    return [make("div", {}, title), make("div", {}, track, make("div", { class: "value" }, text))];
  }

  function over(more, least) {
    const share = (100 * more) / Math.max(1, least);
    return `${share >= 1 ? share.toFixed(1) : share.toPrecision(2)}%`;
  }

  function show() {
    inputs.forEach((input, k) => { input.value = String(at[k]); outputs[k].textContent = value(k); input.setAttribute("aria-valuetext", value(k)); });
    const point = points.get(at.join());
    if (!point) { result.replaceChildren(make("p", {}, "Not computed: times would be out of bounds.")); return; }
    longest = Math.max(longestOf(point), nominal ? longestOf(nominal) : 1);
    const [, compute, bound, best, launches, kept] = point, bars = [];
    kept.forEach((plan, k) => {
      const title = best && k === kept.length - 1 ? `${data.titles[k]} of the step as it is, kept` : data.titles[k];
      if (!plan) bars.push(...bar(title, "cannot run there", 0, 0));
      else bars.push(...bar(title, `step ${time(plan[0], 4)}, ${time(plan[1])} exposed${best && plan[0] - best[0] > launches ? `, ${over(plan[0] - best[0], best[0])} over the optimum there` : ""}`, plan[0] - plan[1], plan[0]));
    });
    if (best) bars.push(...bar("the optimum there", `step ${time(best[0], 4)}, ${time(best[1])} exposed, ${many(launches, "launch")}`, best[0] - best[1], best[0]));
    else bars.push(...bar("lower bound there", `no plan is shorter than ${time(bound, 4)}`, compute, bound));
    result.replaceChildren(make("div", { class: "bars" }, ...bars));
  }
  show();
}
