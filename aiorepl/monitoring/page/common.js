// Shared by the status pages of pipelines and mirrors.
"use strict";
const $ = id => document.getElementById(id);
const MIB = 1048576, GIB = 1024 * MIB, RETRY_MS = 3000, SILENT_MS = 15000;
let received = 0;

// Sets text, never HTML: table names and errors are not trusted.
function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) made[name] = value;
  made.append(...children);
  return made;
}
function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit++; }
  return count === 1 && !unit ? "1 byte" : `${unit ? count.toFixed(1) : count} ${units[unit]}`;
}
function duration(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  return `${Math.round(seconds)} s`;
}
const number = count => count.toLocaleString("en");
function pairs(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) =>
    [element("dt", { textContent: name }), element("dd", { textContent: value })]));
}
// Shows the state, the problems and the positions, with which both pages begin.
function showHeader(now) {
  document.title = `${now.name}: ${now.state}`;
  $("name").textContent = now.name;
  if ($("state").textContent !== now.state) $("state").textContent = now.state;
  $("state").className = `pill ${now.state}`;
  const problems = [...(now.error ? [now.error] : []), ...now.problems];
  $("problems").hidden = !problems.length;
  $("problems").querySelector("ul").replaceChildren(...problems.map(text => element("li", { className: "error", textContent: text })));
  showLadder(now.ladder, now.slot);
}
// The bars have a logarithmic scale: a rung that is `empty` bytes behind has an empty bar. If that is a GiB, a MiB takes a tenth.
function showLadder(ladder, slot) {
  const safe = slot && slot.safe !== null && slot.retained !== null ? slot.safe + slot.retained : null;
  const empty = Math.max(safe ?? GIB, 2 * MIB), scale = size => Math.log2(1 + size / MIB);
  $("ladder").replaceChildren(...ladder.map(rung => {
    const fill = element("div");
    fill.style.width = `${100 * Math.max(0, 1 - scale(rung.behind) / scale(empty))}%`;
    return element("div", { className: "rung" }, element("span", { textContent: rung.name }),
      element("span", {}, rung.sink ? `${rung.sink} ` : "", rung.lsn, " ", element("span", { className: "soft",
        textContent: rung.behind ? `${bytes(rung.behind)} behind` : "" })),
      element("div", { className: "bar" }, fill));
  }));
  $("ladder-scale").textContent = `Logarithmic: an empty bar is ${bytes(empty)} behind`
    + (safe === null ? "." : ", where the slot may be lost.");
}
// Makes a row of a table: the first cell is its header. On a phone each cell shows the name of its column.
function row(columns, header, cells) {
  return element("tr", {}, header, ...cells.map(([content, className], index) => {
    const cell = element("td", { className: className ?? "" }, content);
    cell.dataset.name = columns[index];
    return cell;
  }));
}
// Passes each event to `show`, and draws the lags that `lagsOf` returns by name, and the rates by unit.
function watch(show, lagsOf, ratesOf) {
  let events, since = 0;
  const connect = () => {
    events?.close();
    since = Date.now();
    events = new EventSource("events");
    events.onmessage = message => {
      const now = JSON.parse(message.data);
      if (now.history) remember(now.history);
      for (const mark of now.marks) trends.marks.set(`${mark.kind} ${mark.time}`, mark);
      observe("lags", now.time, lagsOf(now));
      observe("rates", now.time, ratesOf(now));
      received = since = Date.now();
      // New values would replace text that the user is about to copy.
      if (getSelection().isCollapsed) show(now);
      draw();
    };
  };
  connect();
  // An EventSource gives up after a proxy's error, and does not notice a connection without an other end.
  setInterval(() => { if (events.readyState === EventSource.CLOSED || Date.now() - since > SILENT_MS) connect(); }, RETRY_MS);
}
setInterval(() => {
  const seconds = received ? Math.round((Date.now() - received) / 1000) : 0;
  $("age").textContent = seconds > 3 ? `no answer for ${seconds} s: these values are old`
    : getSelection().isCollapsed ? "" : "the values stand still while text is selected";
}, 1000);
