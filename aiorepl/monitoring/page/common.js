// Shared by the status pages of pipelines and mirrors.
"use strict";
const $ = id => document.getElementById(id);
const MIB = 1048576, GIB = 1024 * MIB, RETRY_MS = 3000, SILENT_MS = 15000, HIDDEN_MS = 15000, STEADY_SECONDS = 5, MARK_SECONDS = 86400;
// Two clocks: performance.now may stop while the computer sleeps, and Date.now can be set.
const began = () => [Date.now(), performance.now()];
const since = ([date, time]) => Math.max(Date.now() - date, performance.now() - time);
let received = null, asked = began(), unreadable = false;

// Escapes what would hide or reorder other text, as aiorepl.errors.printable does.
function printable(text) {
  return text.replace(/[\p{C}\p{Z}]/gu, char => {
    const code = char.codePointAt(0), hex = code.toString(16);
    return char === " " ? char : { 9: "\\t", 10: "\\n", 13: "\\r" }[code]
      ?? (code < 256 ? `\\x${hex.padStart(2, "0")}` : code < 65536 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`);
  });
}
// Sets text, never HTML: table names and errors are not trusted.
function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) made[name] = value;
  made.append(...children);
  return made;
}
// A name in a script that is written from right to left would reorder the numbers beside it.
const isolated = name => element("bdi", { textContent: name });
function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while ((unit ? Number(count.toFixed(1)) : count) >= 1024 && unit < units.length - 1) { count /= 1024; unit++; }
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
let shownName = document.title;
function showTitle(now) { shownName = now.name; document.title = `${now.name}: ${now.state}`; }
// Without this, the title of a hidden tab would say "running" for ever.
function showNoAnswer() { document.title = `${shownName}: no answer`; }
// Shows the state, the problems and the positions, with which both pages begin.
function showHeader(now) {
  showTitle(now);
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
      element("span", {}, ...(rung.sink ? [isolated(rung.sink), " "] : []), rung.lsn, " ", element("span", { className: "soft",
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
const read = text => JSON.parse(text, (_, value) => typeof value === "string" ? printable(value) : value);
// Passes each event to `show`, and draws the lags that `lagsOf` returns by name, and the rates by unit.
function watch(show, lagsOf, ratesOf) {
  let events = null, last = 0;
  const receive = now => {
    if (now.time < last - STEADY_SECONDS) move(now.time - last - since(received) / 1000);
    last = now.time;
    skew = now.clock;
    for (const [key, mark] of trends.marks) if (mark.time < now.time - MARK_SECONDS) trends.marks.delete(key);
    for (const mark of now.marks ?? []) trends.marks.set(`${mark.kind} ${mark.time}`, mark);
    observe("lags", now.time, lagsOf(now));
    observe("rates", now.time, ratesOf(now));
    received = began();
    // New values would replace text that the user is about to copy.
    if (getSelection().isCollapsed) show(now);
  };
  const connect = () => {
    events?.close();
    asked = began();
    events = new EventSource("events");
    events.onmessage = message => {
      asked = began();
      try {
        const now = read(message.data);
        if (now.history) remember(JSON.parse(message.data).history); else receive(now);
        draw();
        unreadable = false;
      } catch (error) { // a pipeline of another version, started under this page
        unreadable = true;
      }
    };
  };
  // A browser has six connections to a host, so a page that nobody sees has none; only its title follows, now and then.
  const follow = () => {
    if (!document.hidden) return events || connect();
    events?.close();
    events = null;
    fetch("status").then(answer => answer.text()).then(text => document.hidden && showTitle(read(text)))
      .catch(() => document.hidden && showNoAnswer());
  };
  document.addEventListener("visibilitychange", follow);
  follow();
  setInterval(() => document.hidden && follow(), HIDDEN_MS);
  // An EventSource gives up after a proxy's error, and does not notice a dead connection. A proxy may buffer all events, so after a
  // silence the page also asks for the status.
  setInterval(() => {
    if (document.hidden || events.readyState !== EventSource.CLOSED && since(asked) <= SILENT_MS) return;
    connect();
    fetch("status").then(answer => answer.text()).then(text => { receive(read(text)); draw(); }).catch(() => {});
  }, RETRY_MS);
}
const opened = began();
setInterval(() => {
  const seconds = Math.round(since(received ?? opened) / 1000);
  if (seconds * 1000 > SILENT_MS && !document.hidden) showNoAnswer();
  $("age").textContent = unreadable ? "the pipeline may have another version than this page: reload the page"
    : seconds <= 3 ? (getSelection().isCollapsed ? "" : "the values stand still while text is selected")
    : received ? `no answer for ${seconds} s: these values are old`
    : `no answer for ${seconds} s: if more than five windows show this host, close one; a proxy must not buffer events`;
}, 1000);
