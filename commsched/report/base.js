// What all parts of the page share: numbers as texts, elements, colours.
const DATA = JSON.parse(document.getElementById("data").textContent);
const LETTERS = ["", "G", "C", "L", "H"];
const COLOURS = ["--hidden", "--gradient", "--channel", "--length", "--held"];
const byId = (id) => document.getElementById(id);

function digits(value, figures) {
  const whole = Math.max(0, Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.max(0, figures - 1 - whole));
}

// As format_ns of the library.
function time(ns, figures = 3) {
  if (ns === 0) return "0 us";
  if (Math.abs(ns) < 100) return `${Math.round(ns)} ns`;
  let value = ns / 1000, unit = "us";
  if (Math.abs(value) >= 999.5) { value /= 1000; unit = "ms"; }
  if (Math.abs(value) >= 9999.5) { value /= 1000; unit = "s"; }
  return `${digits(value, figures)} ${unit}`;
}

function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (value < 1023.995 || unit === "TiB") return unit === "B" ? `${bytes} B` : `${value.toFixed(2)} ${unit}`;
    value /= 1024;
  }
  return "";
}

const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : noun.endsWith("ch") ? "es" : "s"}`;

// Texts only ever become text nodes, so nothing in a name is HTML.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  element.append(...children);
  return element;
}

function set(element, attributes) {
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const found = (name) => style.getPropertyValue(name).trim();
  return {
    page: found("--page"), ink: found("--ink"), soft: found("--soft"), line: found("--line"), grid: found("--grid"),
    panel: found("--panel"), compute: found("--compute"), computeInk: found("--compute-ink"), mark: found("--mark"),
    exposed: found("--exposed"), boxInk: found("--box-ink"), edge: found("--edge"), link: found("--link"),
    reasons: COLOURS.map(found),
  };
}

// Steps of 1, 2 or 5 that give at most so many ticks.
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  let step = 10 ** Math.floor(Math.log10((high - low) / most));
  for (const times of [1, 2, 5, 10]) {
    if ((high - low) / (step * times) <= most) { step *= times; break; }
  }
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

// A time on an axis: with as many digits as the step between ticks needs.
function tickText(ns, step) {
  const reach = Math.abs(ns), scale = reach >= 1e10 ? 1e9 : reach >= 1e6 ? 1e6 : 1e3;
  const unit = scale === 1e9 ? "s" : scale === 1e6 ? "ms" : "us";
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / scale) - 1e-9));
  return ns === 0 ? "0" : `${(ns / scale).toFixed(decimals)} ${unit}`;
}

function tip(x, y, lines) {
  const box = byId("tip");
  if (!lines) { box.hidden = true; return; }
  box.replaceChildren(...lines.map((text, k) => make("div", {}, k ? text : make("b", {}, text))));
  box.hidden = false;
  const width = document.documentElement.clientWidth;
  const left = Math.min(x + 14, width - box.offsetWidth - 6);
  const above = y - box.offsetHeight - 12;
  box.style.left = `${Math.max(4, left) + scrollX}px`;
  box.style.top = `${(above > 4 ? above : y + 18) + scrollY}px`;
}

// What the members of a launch are called: the first ones, or all.
function members(runs, most = 3) {
  const found = [];
  let count = 0;
  for (let k = 0; k < runs.length; k += 2) {
    for (let i = 0; i < runs[k + 1]; i++) {
      if (count++ < most) found.push(DATA.names[runs[k] + i]);
    }
  }
  return { count, names: found, text: count > most ? `${found.join(", ")} and ${(count - most).toLocaleString("en")} more` : found.join(", ") };
}
