// The timelines: one canvas each, all with the same window of time.
const view = { low: 0, high: 1, most: 1, start: 0, chosen: null, hot: null };
const panels = [];

// Starts and ends are stored as what lies between them.
function intervals(flat) {
  const starts = new Float64Array(flat.length / 2), ends = new Float64Array(flat.length / 2);
  let now = 0;
  for (let k = 0; k < starts.length; k++) {
    now += flat[2 * k]; starts[k] = now;
    now += flat[2 * k + 1]; ends[k] = now;
  }
  return { starts, ends };
}

function prepare(timeline) {
  const rows = DATA.compute[timeline.rows].map((row) => ({ kind: "compute", label: row.label, names: row.names, ...intervals(row.spans), marks: sums(row.marks || []) }));
  const busy = intervals(timeline.busy);
  const launches = timeline.launches.map((v, k) => ({
    number: k + 1, channel: v[0], kind: timeline.kinds[v[1]], bytes: v[2], ready: v[3], start: v[4], end: v[5],
    exposed: v[6], reason: v[7], runs: v[8], parts: v[9], bare: [],
  }));
  timeline.channels.forEach((label, channel) => {
    const own = launches.filter((launch) => launch.channel === channel).sort((a, b) => a.start - b.start);
    const waits = own.some((launch) => launch.start > launch.ready);
    rows.push({ kind: "launches", label, launches: own, waits, starts: Float64Array.from(own, (l) => l.start), ends: Float64Array.from(own, (l) => l.end), marks: [] });
  });
  for (const launch of launches) launch.bare = uncovered(launch, busy);
  return { ...timeline, rows, launches };
}

function sums(steps) {
  let now = 0;
  return Float64Array.from(steps, (step) => (now += step));
}

function uncovered(launch, busy) {
  if (!launch.exposed) return [];
  const found = [];
  let now = launch.start;
  for (let k = firstAfter(busy.ends, now); k < busy.starts.length && busy.starts[k] < launch.end; k++) {
    if (busy.starts[k] > now) found.push([now, busy.starts[k]]);
    now = Math.max(now, busy.ends[k]);
  }
  if (now < launch.end) found.push([now, launch.end]);
  return found;
}

// The first index whose value is above x.
function firstAfter(sorted, x) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > x) high = middle; else low = middle + 1;
  }
  return low;
}

const LANES = 3, AXIS = 20, HEAD = 30, NARROW = 640;

class Panel {
  constructor(timeline, number) {
    this.timeline = timeline;
    this.number = number;
    this.canvas = make("canvas", {
      class: "time", tabindex: "0", role: "application", "aria-roledescription": "timeline", "aria-describedby": "chart-help details",
      "aria-label": `${timeline.title}: step ${time(timeline.makespan, 4)}, ${time(timeline.exposed)} exposed, ${many(timeline.launches.length, "launch")}`,
    });
    const facts = [timeline.note, `step ${time(timeline.makespan, 4)}`, timeline.exposed ? `${time(timeline.exposed)} exposed` : "nothing exposed", many(timeline.launches.length, "launch")];
    this.figure = make("figure", {}, make("figcaption", {}, make("b", {}, timeline.title), make("span", { class: "soft" }, facts.filter(Boolean).join(" · "))), this.canvas);
    this.hits = [];
  }

  layout(width, ratio) {
    this.width = width;
    const context = this.context = this.canvas.getContext("2d");
    context.font = FONT;
    const widest = Math.max(...this.timeline.rows.map((row) => context.measureText(row.label).width));
    this.gutter = width < NARROW ? 0 : Math.min(190, Math.ceil(widest) + 14);
    this.tops = [];
    let y = HEAD;
    const dense = this.timeline.rows.length > 12;
    for (const row of this.timeline.rows) {
      if (!this.gutter) y += 14;
      this.tops.push(y);
      y += row.kind === "compute" ? (dense ? 18 : 26) : row.waits && !dense ? 48 : (dense ? 25 : 35);
    }
    this.box = dense ? 16 : 24;
    this.plot = y;
    this.height = y + AXIS;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.ratio = ratio;
  }

  x(ns) { return this.gutter + ((ns - view.low) / (view.high - view.low)) * (this.width - this.gutter - 2); }
  ns(x) { return view.low + ((x - this.gutter) / (this.width - this.gutter - 2)) * (view.high - view.low); }

  paint(palette) {
    const c = this.context;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = palette.page;
    c.fillRect(0, 0, this.width, this.height);
    c.font = FONT;
    c.textBaseline = "middle";
    this.hits = [];
    this.axis(c, palette);
    c.save();
    c.beginPath();
    c.rect(this.gutter, 0, this.width - this.gutter, this.plot);
    c.clip();
    this.timeline.rows.forEach((row, k) => {
      if (row.kind === "compute") this.compute(c, palette, row, this.tops[k], k);
      else this.channel(c, palette, row, this.tops[k], k);
    });
    this.ends(c, palette);
    c.restore();
    c.font = FONT;
    c.fillStyle = palette.ink;
    c.textAlign = "left";
    this.timeline.rows.forEach((row, k) => {
      const label = fitted(c, row.label, this.gutter ? this.gutter - 8 : this.width);
      c.fillText(label, 0, this.gutter ? this.tops[k] + this.box / 2 : this.tops[k] - 7);
    });
  }

  axis(c, palette) {
    const marks = ticks(view.low, view.high, Math.max(2, Math.floor((this.width - this.gutter) / 110)));
    const step = marks.length > 1 ? marks[1] - marks[0] : 1;
    c.font = SMALL;
    c.lineWidth = 1;
    for (const ns of marks) {
      const x = Math.round(this.x(ns)) + 0.5;
      c.strokeStyle = palette.grid;
      line(c, x, HEAD - 4, x, this.plot);
      const text = tickText(ns, step), half = c.measureText(text).width / 2;
      c.fillStyle = palette.soft;
      c.textAlign = "center";
      c.fillText(text, Math.min(Math.max(x, this.gutter + half), this.width - half), this.plot + 11);
    }
    c.strokeStyle = palette.line;
    line(c, this.gutter, this.plot + 0.5, this.width, this.plot + 0.5);
  }

  // Where compute alone and the step end, each with its text in a line of its own.
  ends(c, palette) {
    const alone = DATA.gradients && !this.timeline.slowed ? "backward ends" : "compute alone ends";
    const found = [[this.timeline.compute, alone, [5, 3], 8], [this.timeline.makespan, "step ends", [], 22]];
    c.font = SMALL;
    for (const [ns, text, dash, y] of found) {
      const x = this.x(ns), label = `${text} ${time(ns, 4)}`, width = c.measureText(label).width + 6;
      if (x < this.gutter - 1 || x > this.width + 1) continue;
      c.strokeStyle = palette.ink;
      c.lineWidth = 1.2;
      c.setLineDash(dash);
      line(c, x, y, x, this.plot);
      c.setLineDash([]);
      const right = x - this.gutter < width;
      const left = right ? x + 4 : x - width + 2;
      c.fillStyle = palette.page;
      c.fillRect(left - 2, y - 7, width, 14);
      c.fillStyle = palette.ink;
      c.textAlign = "left";
      c.fillText(label, left, y);
    }
  }

  compute(c, palette, row, top, place) {
    const height = this.box - 2;
    this.spans(row, (k, x, width, count) => {
      c.fillStyle = palette.compute;
      c.fillRect(x, top, width, height);
      this.hits.push({ x, width, top, height, place, row, index: k, count });
      if (count > 1) return;
      if (width > 3) { c.fillStyle = palette.edge; c.fillRect(x + width - 0.6, top, 0.6, height); }
      if (row.names && width > 40) {
        c.fillStyle = palette.computeInk;
        c.font = SMALL;
        c.textAlign = "left";
        c.fillText(fitted(c, DATA.names[row.names[k]], width - 8), x + 4, top + height / 2 + 0.5);
      }
    });
    c.fillStyle = palette.mark;
    let last = -9;
    for (let k = firstAfter(row.marks, view.low) ; k < row.marks.length && row.marks[k] <= view.high; k++) {
      const x = this.x(row.marks[k]);
      if (x - last < 1.5) continue;
      last = x;
      c.fillRect(x - 0.5, top + height * 0.55, 1, height * 0.45);
    }
  }

  // Calls back with what is wide enough to see, and with runs of what is not.
  spans(row, each) {
    const { starts, ends } = row;
    let run = null;
    const flush = () => { if (run) each(run.first, run.x, Math.max(run.right - run.x, 1), run.count, run); run = null; };
    for (let k = firstAfter(ends, view.low); k < starts.length && starts[k] < view.high; k++) {
      const x = Math.max(this.x(starts[k]), this.gutter - 9), right = Math.min(this.x(ends[k]), this.width + 9);
      if (right - x >= 3.5) { flush(); each(k, x, right - x, 1, null); continue; }
      if (run && x - run.right > 1) flush();
      if (!run) run = { first: k, x, right: x, count: 0 };
      run.right = Math.max(run.right, right);
      run.count++;
    }
    flush();
  }

  channel(c, palette, row, top, place) {
    const height = this.box;
    this.waits(c, palette, row, top + height + 8);
    this.spans(row, (k, x, width, count) => {
      let worst = row.launches[k];
      for (let i = k + 1; i < k + count; i++) if (row.launches[i].exposed > worst.exposed) worst = row.launches[i];
      c.fillStyle = palette.reasons[worst.reason];
      c.fillRect(x, top, width, height);
      this.hits.push({ x, width, top, height: height + 8, place, row, index: k, count });
      const bare = this.strips(row.launches, k, count);
      for (const [left, right] of bare) this.bare(c, palette, Math.max(left, x), Math.min(right, x + width), top, height, count === 1);
      if (width > 3.5) { c.strokeStyle = palette.edge; c.lineWidth = 1; c.strokeRect(x + 0.5, top + 0.5, width - 1, height - 1); }
      const letter = LETTERS[worst.reason];
      const text = count > 1 ? `${count}×` : `#${worst.number}${letter ? ` ${letter}` : ""}`;
      c.font = SMALL;
      const needed = c.measureText(text).width + 6;
      if (width > needed) {
        if (bare.length) { c.fillStyle = palette.reasons[worst.reason]; c.fillRect(x + width / 2 - needed / 2, top + height / 2 - 7, needed, 14); }
        c.fillStyle = palette.boxInk;
        c.textAlign = "center";
        c.fillText(text, x + width / 2, top + height / 2 + 0.5);
      } else if (letter && width > 9 && count === 1) {
        c.fillStyle = palette.boxInk;
        c.textAlign = "center";
        c.fillText(letter, x + width / 2, top + height / 2 + 0.5);
      }
    });
    for (const [state, line] of [[view.hot, 1.5], [view.chosen, 3]]) {
      if (state && state.panel === this.number && state.launch && row.launches.includes(state.launch)) this.frame(c, palette, state.launch, top, line);
    }
  }

  // The exposed parts of some launches on the screen; what touches there is one.
  strips(launches, first, count) {
    const found = [];
    let last = null;
    for (let k = first; k < first + count; k++) {
      for (const [low, high] of launches[k].bare) {
        const left = this.x(low), right = this.x(high);
        if (last && left - last[1] < 0.7) last[1] = Math.max(last[1], right);
        else found.push((last = [left, right]));
      }
    }
    return found;
  }

  // Around a launch that is chosen or pointed at, over its neighbours.
  frame(c, palette, launch, top, line) {
    const x = Math.max(this.x(launch.start), this.gutter - 9), right = Math.min(this.x(launch.end), this.width + 9);
    c.strokeStyle = palette.ink;
    c.lineWidth = line;
    c.strokeRect(x - 1, top - 1, Math.max(right - x, 2) + 2, this.box + 2);
  }

  bare(c, palette, x, right, top, height, hatched) {
    const width = Math.max(right - x, 0.7);
    c.fillStyle = palette.exposed;
    c.fillRect(x, top + height + 1, width, 4);
    if (!hatched || width < 4) return;
    c.save();
    c.beginPath();
    c.rect(x, top, width, height);
    c.clip();
    c.strokeStyle = palette.exposed;
    c.lineWidth = 1.7;
    c.beginPath();
    // Lines keep their place when the view moves past the edge.
    const from = Math.max(x, this.gutter) - height, until = Math.min(right, this.width);
    for (let at = from - (from % 7); at < until; at += 7) { c.moveTo(at, top + height); c.lineTo(at + height, top); }
    c.stroke();
    c.restore();
  }

  // From when a bucket is ready until it starts.
  waits(c, palette, row, top) {
    if (this.box < 20) return;
    c.strokeStyle = palette.soft;
    c.fillStyle = palette.soft;
    c.lineWidth = 1;
    c.beginPath();
    let drawn = 0;
    for (const launch of row.launches) {
      if (launch.start <= launch.ready || launch.ready > view.high || launch.start < view.low) continue;
      const x = this.x(launch.ready), right = this.x(launch.start);
      if (right - x < 3 || drawn++ > 1500) continue;
      const y = top + (launch.number % LANES) * 4 + 0.5;
      c.moveTo(x, y);
      c.lineTo(right, y);
      c.rect(x - 1.5, y - 1.5, 3, 3);
    }
    c.stroke();
    c.fill();
  }

  at(x, y) {
    let best = null, near = 6;
    for (const hit of this.hits) {
      if (y < hit.top - 2 || y > hit.top + hit.height + 2) continue;
      const away = x < hit.x ? hit.x - x : Math.max(0, x - hit.x - hit.width);
      if (away < near) { best = hit; near = away; }
      if (!away) break;
    }
    if (best && best.row.marks.length && y > best.top + best.height * 0.4) {
      const ns = this.ns(x), after = firstAfter(best.row.marks, ns);
      const k = [after - 1, after].filter((i) => i >= 0 && i < best.row.marks.length).sort((a, b) => Math.abs(best.row.marks[a] - ns) - Math.abs(best.row.marks[b] - ns))[0];
      if (Math.abs(this.x(best.row.marks[k]) - x) < 5) return { ...best, mark: k };
    }
    return best;
  }
}

const FONT = '13px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
const SMALL = '11.5px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

function line(c, x, y, right, bottom) {
  c.beginPath();
  c.moveTo(x, y);
  c.lineTo(right, bottom);
  c.stroke();
}

// The part of a text that fits.
function fitted(c, text, width) {
  if (c.measureText(text).width <= width) return text;
  let low = 0, high = Math.min(text.length, Math.ceil(width));
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (c.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle; else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
