// Curves of a run that is watched, and of runs that are compared. Points come thinned from the server; new ones by its stream.
"use strict";

const MOST_POINTS = 4000;
const FIRST = ["loss", "eval", "lr", "tokens_per_s", "peak_memory", "grad_norm"];
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function digits(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
  return size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}
function bytes(value) {
  if (value == null) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return (unit === "B" ? Math.round(value) : value.toFixed(1)) + " " + unit;
    value /= 1024;
  }
  return value.toFixed(1) + " TiB";
}
function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return seconds.toFixed(1) + " s";
  let minutes = Math.floor(Math.round(seconds) / 60);
  const rest = Math.round(seconds) % 60;
  if (minutes < 60) return `${minutes}m ${String(rest).padStart(2, "0")}s`;
  const hours = Math.floor(minutes / 60);
  minutes %= 60;
  return hours < 48 ? `${hours}h ${String(minutes).padStart(2, "0")}m` : `${Math.floor(hours / 24)}d ${String(hours % 24).padStart(2, "0")}h`;
}
const shown = (name) => (name.includes("memory") ? bytes : name === "eta" || name === "seconds" ? duration : digits);
function short(value) {
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (size >= limit) return Number((value / limit).toPrecision(3)) + unit;
  return size && size < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(3)));
}

// One chart: a title, what is under the pointer, a button for a logarithmic axis.
class Chart {
  constructor(grid, name, title, labels, logText) {
    this.name = name;
    this.labels = labels;
    this.log = false;
    this.data = [[]];
    this.box = document.createElement("section");
    this.box.className = "chart";
    this.box.dataset.metric = name;
    const header = document.createElement("header"), heading = document.createElement("h3");
    heading.textContent = title;
    this.value = document.createElement("output");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = logText;
    button.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-label", `${logText}: ${title}`);
    button.addEventListener("click", () => { this.log = !this.log; button.setAttribute("aria-pressed", String(this.log)); this.draw(); });
    header.append(heading, this.value, button);
    this.plot = document.createElement("div");
    this.plot.className = "plot";
    this.plot.setAttribute("role", "img");
    this.box.append(header, this.plot);
    grid.append(this.box);
    this.title = title;
    new ResizeObserver(() => this.u && this.u.setSize(this.size())).observe(this.plot);
  }
  size() { return { width: Math.max(this.plot.clientWidth, 80), height: Math.max(this.plot.clientHeight, 80) }; }
  set(data) {
    const fresh = !this.u || data.length !== this.data.length;
    this.data = data;
    if (fresh) this.draw(); else this.u.setData(data);
    this.tell(null);
  }
  tell(index) {
    const format = shown(this.name), columns = this.data.slice(1);
    const last = (column) => { for (let i = column.length - 1; i >= 0; i--) if (column[i] != null) return column[i]; return null; };
    const values = columns.map((column) => format(index == null ? last(column) : column[index]));
    this.value.textContent = (index == null ? "" : `${digits(this.data[0][index])}: `) + values.slice(0, 4).join(" · ");
    if (index == null) this.plot.setAttribute("aria-label", `${this.title}: ${values.join(", ")}`);
  }
  draw() {
    this.u?.destroy();
    const grid = { stroke: color("--line"), width: 1 }, ticks = { stroke: color("--line"), size: 4 };
    const axis = { stroke: color("--muted"), font: "11px system-ui", grid, ticks };
    const values = (u, splits) => splits.map((v) => (v == null ? "" : this.name.includes("memory") ? bytes(v) : short(v)));
    const sparse = (i) => (this.data[i + 1].filter((v) => v != null).length < 30);
    this.u = new uPlot({
      ...this.size(), legend: { show: false }, cursor: { y: false, points: { size: 6 } }, padding: [8, 14, 0, 0],
      scales: { x: { time: false }, y: this.log ? { distr: 3 } : {} },
      axes: [{ ...axis, size: 30, values: (u, splits) => splits.map((v) => (v == null ? "" : short(v))) }, { ...axis, size: this.name.includes("memory") ? 76 : 58, values }],
      series: [{}, ...this.labels.map((label, i) => ({
        label, stroke: color(`--c${i % 8}`), width: 1.6, spanGaps: true,
        points: { show: sparse(i), size: 5 },
      }))],
      hooks: { setCursor: [(u) => this.tell(u.cursor.idx ?? null)] },
    }, this.log ? this.data.map((column, i) => (i ? column.map((v) => (v > 0 ? v : null)) : column)) : this.data, this.plot);
  }
}

function order(names) {
  const rank = (name) => { const at = FIRST.indexOf(name); return at < 0 ? FIRST.length : at; };
  return [...names].sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
}
const evaluated = (name) => (name === "loss" ? "eval" : `eval/${name}`);
// All curves of a run by their name in charts, with tokens and seconds also at its evaluations, which are between steps that have them.
function everything(run) {
  const curves = new Map(Object.entries(run.metrics)), steps = run.metrics.loss ?? Object.values(run.metrics)[0];
  for (const [name, { x, y }] of Object.entries(run.evals)) {
    let at = -1;
    const before = x.map((step) => { while (steps && at + 1 < steps.x.length && steps.x[at + 1] <= step) at++; return at; });
    const then = (axis) => before.map((i) => (i < 0 ? 0 : steps[axis][i]));
    curves.set(evaluated(name), { x, y, tokens: then("tokens"), seconds: then("seconds") });
  }
  return curves;
}
// The server reads a long file in pieces; what it has so far is told.
async function load(source, tell) {
  for (;;) {
    const answer = await fetch(source + "/curves");
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    if (found.loaded >= 0.999) return found;
    tell?.(found);
    await new Promise((go) => setTimeout(go, 400));
  }
}

class Run {
  constructor(box) {
    this.box = box;
    this.source = box.dataset.source;
    this.names = JSON.parse(box.dataset.names);
    this.charts = new Map();
    this.status = box.querySelector(".status");
    this.state = document.getElementById("run").dataset.state;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.listen()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.charts.forEach((chart) => chart.draw()));
    this.begin();
  }
  async begin() {
    this.points = await load(this.source, (part) => {
      this.points ??= part;
      Object.assign(this.points, part);
      this.draw();
      this.status.textContent = `${this.box.dataset.loading} ${Math.floor(100 * part.loaded)} %`;
    });
    this.offset = this.points.offset;
    this.draw();
    this.listen();
  }
  tables() {
    const tables = new Map();
    const metrics = { ...this.points.metrics };
    // single steps of what the server has not read yet
    for (const [name, ahead] of Object.entries(this.points.ahead ?? {})) {
      const curve = metrics[name] ?? { x: [], y: [] }, later = ahead.x.findIndex((x) => !curve.x.length || x > curve.x.at(-1));
      if (later >= 0) metrics[name] = { x: [...curve.x, ...ahead.x.slice(later)], y: [...curve.y, ...ahead.y.slice(later)] };
    }
    for (const [name, curve] of Object.entries(metrics)) if (curve.x.length) tables.set(name, [curve.x, curve.y]);
    for (const [name, curve] of Object.entries(this.points.evals)) if (curve.x.length) tables.set(evaluated(name), [curve.x, curve.y]);
    return tables;
  }
  draw() {
    const tables = this.tables(), grid = this.box.querySelector(".grid");
    for (const name of order(tables.keys())) {
      if (!this.charts.has(name)) this.charts.set(name, new Chart(grid, name, this.names[name] || name, [name], this.box.dataset.log));
      this.charts.get(name).set(tables.get(name));
    }
    this.status.textContent = tables.size ? "" : this.box.dataset.none;
  }
  listen() {
    if (this.stream || document.hidden || this.offset === undefined) return;
    this.stream = new EventSource(`${this.source}/stream?from=${this.offset}`);
    this.stream.addEventListener("events", (message) => this.add(message));
    this.stream.addEventListener("reload", () => { this.close(); this.begin(); });
    this.stream.addEventListener("state", (message) => {
      const state = JSON.parse(message.data).state;
      if (state !== this.state) { this.close(); location.reload(); }
    });
  }
  close() { this.stream?.close(); this.stream = undefined; }
  add(message) {
    this.offset = Number(message.lastEventId);
    let last = null, many = false;
    for (const line of message.data.split("\n")) {
      let event;
      try { event = JSON.parse(line); } catch { continue; }
      const evaluated = event.event === "eval";
      if (event.event !== "step" && !evaluated) continue;
      if (!evaluated) last = event;
      for (const [name, value] of Object.entries(event)) {
        if (typeof value !== "number" || ["time", "step", "tokens", "seconds", "eta", "samples", "rank"].includes(name)) continue;
        const table = evaluated ? this.points.evals : this.points.metrics;
        const curve = (table[name] ??= { x: [], y: [] });
        while (curve.x.length && curve.x.at(-1) >= event.step) { curve.x.pop(); curve.y.pop(); }
        curve.x.push(event.step);
        curve.y.push(value);
        many ||= curve.x.length > MOST_POINTS;
      }
    }
    this.draw();
    if (last) this.tell(last);
    if (many) { this.close(); this.begin(); }
  }
  tell(event) {
    for (const place of document.querySelectorAll("[data-live]")) {
      const name = place.dataset.live;
      if (name === "progress") place.value = event.step;
      else if (name in event) place.textContent = shown(name)(event[name]);
    }
  }
}

class Comparison {
  constructor(box) {
    this.box = box;
    this.names = JSON.parse(box.dataset.names);
    this.titles = JSON.parse(box.dataset.titles);
    this.charts = new Map();
    for (const radio of document.querySelectorAll('[name="axis"]')) radio.addEventListener("change", () => this.draw());
    Promise.all(JSON.parse(box.dataset.runs).map((id) => load(`/run/${id}`))).then((found) => { this.found = found.map(everything); this.draw(); });
  }
  draw() {
    const axis = document.querySelector('[name="axis"]:checked').value, names = new Set();
    for (const curves of this.found) for (const name of curves.keys()) names.add(name);
    for (const name of order(names)) {
      const tables = this.found.map((curves) => {
        const curve = curves.get(name), table = new Map();
        if (curve) curve[axis].forEach((x, i) => table.set(x, curve.y[i]));
        const xs = [...table.keys()].sort((a, b) => a - b);
        return [xs, xs.map((x) => table.get(x))];
      });
      if (!this.charts.has(name)) this.charts.set(name, new Chart(this.box.querySelector(".grid"), name, this.names[name] || name, this.titles, this.box.dataset.log));
      this.charts.get(name).set(uPlot.join(tables));
    }
    this.box.dataset.axis = axis;
    this.box.querySelector(".status").textContent = names.size ? "" : this.box.dataset.none;
  }
}

const live = document.getElementById("charts"), several = document.getElementById("compare");
if (live) window.watched = new Run(live);
if (several) window.compared = new Comparison(several);
