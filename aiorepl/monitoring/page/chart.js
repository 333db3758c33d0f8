// Charts of the last five minutes, hour or day. A chart shows the largest value of each step.
const COLOURS = 6, DASHES = ["none", "7 7", "1 6", "12 7 1 7"], FOOT = 18, HEAD = 14, MOST_SHOWN = 8, SPIKE = 100;
const trends = { lags: [], rates: [], marks: new Map() }, order = [], charts = [];
let range = 0, scale = "auto", skew = 0;

// Adds a value to a level: the largest one of a step counts. Levels have the form that aiorepl/monitoring/peaks.py describes.
function put(level, name, index, value) {
  if (value === null || value === undefined) return;
  if (level.kind === "lags" && !order.includes(name)) order.push(name);
  if (!level.series.has(name)) level.series.set(name, new Map());
  const series = level.series.get(name);
  series.set(index, Math.max(value, series.get(index) ?? 0));
  level.last = Math.max(level.last, index);
}
function forget(level) {
  for (const series of level.series.values())
    for (const index of [...series.keys()]) if (index <= level.last - level.count) series.delete(index);
}
// Moves all values and marks by some seconds. The server's time goes back only after a restart with a clock that was set back.
function move(seconds) {
  for (const level of [...trends.lags, ...trends.rates]) {
    const steps = Math.round(seconds / level.step);
    for (const [name, series] of level.series) level.series.set(name, new Map([...series].map(([index, value]) => [index + steps, value])));
    level.last += steps;
  }
  for (const mark of trends.marks.values()) mark.time += seconds;
}
// Adds a part of the history that a server sends first. After a restart of the server, what this page has seen before stays.
function remember({ kind, level: position, step, count, last, values }) {
  const level = trends[kind][position] ??= { kind, step, count, last: 0, series: new Map() };
  for (const [name, found] of Object.entries(values))
    found.forEach((value, place) => put(level, printable(name), last - found.length + 1 + place, value));
  forget(level);
}
function observe(kind, time, values) {
  for (const level of trends[kind]) {
    const index = Math.floor(time / level.step);
    for (const [name, value] of Object.entries(values)) put(level, name, index, value);
    forget(level);
  }
}
function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}
function clock(time, step) {
  return new Date((time + skew) * 1000).toLocaleString("en-GB", { hour: "2-digit", minute: "2-digit",
    ...(step < 60 ? { second: "2-digit" } : step > 60 ? { weekday: "short" } : {}) });
}
const stroke = name => {
  const index = Math.max(order.indexOf(name), 0);
  return { stroke: `var(--c${index % COLOURS})`, "stroke-dasharray": DASHES[Math.floor(index / COLOURS) % DASHES.length] };
};
// Returns at most five round values up to `top`; sizes are round in powers of 1024.
function ticks(top, base, log) {
  if (log) {
    const factor = base === 1024 ? 32 : 10, first = base === 1024 ? 1024 : 1, found = [];
    for (let tick = first; tick <= top; tick *= factor) found.push(tick);
    return found.length > 5 ? found.filter((_, index) => index % 2 === 0) : found;
  }
  const unit = base ** Math.max(0, Math.floor(Math.log(top) / Math.log(base)));
  const step = [.1, .2, .5, 1, 2, 5, 10, 20, 50, 100, 200, 500].map(each => Math.max(each * unit, 1)).find(each => top / each <= 4) ?? top;
  return Array.from({ length: Math.floor(top / step) }, (_, index) => (index + 1) * step);
}

class Chart {
  // `only`: the series to draw; without it, all are drawn, and there is a legend that can hide each.
  constructor(id, kind, { base = 1024, only = null, format = bytes } = {}) {
    Object.assign(this, { id, kind, base, only, format, hidden: new Set(), entries: new Map(), at: null, x: null, log: false });
    this.svg = svg("svg", { role: "img", "aria-labelledby": `${id}-title ${id}-text`, preserveAspectRatio: "none" });
    this.cursor = element("div", { className: "cursor", role: "slider", tabIndex: 0 });
    this.cursor.setAttribute("aria-labelledby", `${id}-title`);
    this.tip = element("div", { className: "tip", hidden: true });
    $(id).append(this.svg, this.cursor, this.tip);
    this.cursor.onpointermove = this.cursor.onpointerdown = event => { this.x = event.offsetX; this.draw(); };
    this.cursor.onpointerleave = () => { this.x = null; this.draw(); };
    this.cursor.onblur = () => { this.at = null; this.draw(); };
    this.cursor.onkeydown = event => this.press(event);
    charts.push(this);
  }
  get level() { return trends[this.kind][range]; }
  names() {
    const names = (this.only ? [this.only] : order).filter(name => this.level.series.has(name));
    // Dashed lines are drawn over the others, so that of two equal ones both are visible.
    const dashes = name => DASHES.indexOf(stroke(name)["stroke-dasharray"]);
    return { names, shown: names.filter(name => !this.hidden.has(name)).sort((a, b) => dashes(a) - dashes(b)) };
  }
  // Moves the cursor to another step that has a value.
  press(event) {
    const known = this.known ?? [], place = this.at === null ? known.length : known.indexOf(this.at);
    const to = { ArrowLeft: place - 1, ArrowRight: place + 1, ArrowDown: place - 1, ArrowUp: place + 1, PageDown: place - 10,
      PageUp: place + 10, Home: 0, End: known.length - 1 }[event.key];
    if (event.key === "Escape") this.at = null;
    else if (to === undefined || !known.length) return;
    else this.at = known[Math.min(Math.max(to, 0), known.length - 1)];
    this.x = null;
    event.preventDefault();
    this.draw();
  }
  draw() {
    const level = this.level;
    if (!level) return;
    const { names, shown } = this.names(), { step, count, last } = level, span = step * count, end = (last + 1) * step;
    const box = this.svg.getBoundingClientRect(), width = Math.max(box.width, 1), height = Math.max(box.height, 1);
    const values = shown.map(name => [...level.series.get(name)].sort(([a], [b]) => a - b));
    const positive = values.map(each => each.map(([, value]) => value).filter(value => value > 0)).filter(each => each.length);
    const top = 1.05 * positive.flat().reduce((greatest, value) => Math.max(greatest, value), 1);
    const usual = Math.min(...positive.map(each => each.sort((a, b) => a - b)[Math.floor(each.length / 2)]));
    this.log = scale === "log" || scale === "auto" && top / usual > (this.log ? SPIKE / 3 : SPIKE);
    const unit = this.base === 1024 ? 1024 : 1, grade = this.log ? value => Math.log2(1 + value / unit) : value => value;
    const x = index => (index - last + count - .5) / count * width;
    const y = value => HEAD + (1 - grade(value) / grade(top)) * (height - HEAD - FOOT);
    const marks = [...trends.marks.values()].filter(mark => mark.time >= end - span && mark.time <= end);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      svg("line", { x1: 0, x2: width, y1: y(0), y2: y(0), class: "axis" }),
      ...ticks(top, this.base, this.log).flatMap(tick => [
        svg("line", { x1: 0, x2: width, y1: y(tick), y2: y(tick), class: "tick" }),
        svg("text", { x: 0, y: y(tick) - 3 }, this.format(tick))]),
      svg("text", { x: 0, y: height - 4 }, clock(end - span, step)),
      svg("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, clock(end - span / 2, step)),
      svg("text", { x: width, y: height - 4, "text-anchor": "end" }, "now"),
      ...marks.map(mark => svg("path", { class: `mark ${mark.kind}`,
        d: `M${x(mark.time / step - .5)} ${y(0)}V${HEAD - 4}l-4 -7h8l-4 7` })),
      ...shown.map((name, index) => svg("path", { class: "series", ...stroke(name), d: values[index].map(([at, value], place) =>
        `${place && (at - values[index][place - 1][0]) * step <= Math.max(2.5 * step, 5) ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}h0`).join("") })));
    this.known = [...new Set(values.flatMap(each => each.map(([index]) => index)))].sort((a, b) => a - b);
    this.point(shown, marks, x, y, width);
    this.describe(names);
  }
  // Shows the values at the pointer, or else at the keyboard's cursor.
  point(shown, marks, x, y, width) {
    const { step, series } = this.level;
    const nearest = at => this.known.reduce((a, b) => Math.abs(at(b)) < Math.abs(at(a)) ? b : a, this.known[0]);
    if (this.at !== null && !this.known.includes(this.at)) this.at = nearest(index => index - this.at) ?? null;
    const at = this.x !== null ? nearest(index => x(index) - this.x) ?? null : this.at;
    this.tip.hidden = at === null;
    const found = at === null ? [] : shown.map(name => [name, series.get(name).get(at)]).filter(([, value]) => value !== undefined)
      .sort(([, a], [, b]) => b - a);
    const near = at === null ? [] : marks.filter(mark => Math.abs(x(mark.time / step - .5) - x(at)) < 6);
    if (at !== null) {
      const left = x(at);
      this.svg.append(svg("line", { x1: left, x2: left, y1: HEAD, y2: y(0), class: "at" }),
        ...found.map(([name, value]) => svg("circle", { cx: left, cy: y(value), r: 3.5, fill: stroke(name).stroke })));
      const line = (...parts) => element("div", {}, ...parts);
      this.tip.replaceChildren(
        line(element("b", { textContent: clock(at * step, step) }), step > 1 ? ` to ${clock((at + 1) * step, step)}` : ""),
        ...found.slice(0, MOST_SHOWN).map(([name, value]) => line(...(this.only ? [] : [sample(name), isolated(name), " "]), this.format(value))),
        ...(found.length > MOST_SHOWN ? [line(`and ${found.length - MOST_SHOWN} more`)] : []),
        ...near.map(mark => line(`${mark.kind} at ${clock(mark.time, 1)}`)));
      this.tip.style.left = left < width / 2 ? `${left + 10}px` : "";
      this.tip.style.right = left < width / 2 ? "" : `${width - left + 10}px`;
    }
    const { known, cursor } = this, last = at ?? known.at(-1) ?? 0;
    const text = at !== null ? [...this.tip.children].map(each => each.textContent).join(", ")
      : `now: ${shown.map(name => `${this.only ? "" : name} ${this.format(series.get(name).get(last))}`).join(", ")}`;
    for (const [name, value] of [["min", known[0] ?? 0], ["max", known.at(-1) ?? 0], ["now", last]]) cursor.setAttribute(`aria-value${name}`, value);
    // A screen reader would read a text that changes every second.
    if (at !== null || document.activeElement !== cursor) cursor.setAttribute("aria-valuetext", text);
  }
  describe(names) {
    const { step } = this.level, { last, series } = trends[this.kind][0], legend = $(`${this.id}-legend`);
    const marked = [...new Set([...trends.marks.values()].map(mark => mark.kind))];
    const text = $(`${this.id}-text`), parts = [text.dataset.title, step > 1 && `largest value of each ${duration(step)}`,
      this.log && "logarithmic", marked.length && legend && `▾ ${marked.join(" ▾ ")}`];
    text.textContent = parts.filter(Boolean).join(" · ");
    if (!legend) return;
    for (const name of names) {
      if (!this.entries.has(name)) {
        const value = element("span"), button = element("button", { type: "button", title: "show or hide" }, sample(name), isolated(name), " ", value);
        button.onclick = () => { this.hidden.delete(name) || this.hidden.add(name); this.draw(); };
        this.entries.set(name, [button, value]);
        legend.append(button);
      }
      const [button, value] = this.entries.get(name);
      value.textContent = this.format(series.get(name)?.get(last));
      button.setAttribute("aria-pressed", !this.hidden.has(name));
    }
  }
}
function sample(name) {
  const made = svg("svg", { class: "sample", "aria-hidden": "true", viewBox: "0 0 20 4" });
  made.append(svg("line", { x1: 0, x2: 20, y1: 2, y2: 2, ...stroke(name) }));
  return made;
}
function draw() { for (const chart of charts) chart.draw(); }
for (const choice of document.querySelectorAll("input[name=range]")) choice.onchange = () => { range = Number(choice.value); draw(); };
$("scale").onchange = () => { scale = $("scale").value; draw(); };
addEventListener("resize", draw);
