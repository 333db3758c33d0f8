const perSecond = (rate, kind) => !rate ? "–" : kind === "bytes" ? `${bytes(Math.round(rate.bytes))}/s`
  : `${number(rate.rows < 10 ? Math.round(rate.rows * 10) / 10 : Math.round(rate.rows))} rows/s`;
function figure(name, value, note) {
  return element("div", {}, element("div", { className: "soft", textContent: name }),
    element("div", { className: "figure", textContent: value }), element("div", { className: "soft", textContent: note }));
}
function showThroughput(now) {
  const rates = now.rates ?? {}, slowest = now.sinks.find(sink => sink.name === now.slowest);
  $("throughput").replaceChildren(
    figure("Rows", perSecond(rates.now, "rows"), `${perSecond(rates.minute, "rows")} in the last minute`),
    figure("Bytes", perSecond(rates.now, "bytes"), `${perSecond(rates.minute, "bytes")} in the last minute`),
    figure("Last change", rates.change_seconds === null || rates.change_seconds === undefined ? "none yet"
      : rates.change_seconds < 2 ? "now" : `${duration(rates.change_seconds)} ago`, "received from the server"),
    figure("Slowest sink", slowest ? slowest.name : "none lags", slowest ? `${bytes(slowest.lag_bytes)}, ${duration(slowest.lag_seconds)} behind` : ""),
    ...(rates.snapshot_seconds ? [figure("Snapshot", `${duration(rates.snapshot_seconds)} left`, "at the last minute's pace")] : []));
  const { address, database, version } = now.server;
  $("about").textContent = [address, database && `database ${database}`, version && `PostgreSQL ${version.split(" ")[0]}`,
    now.uptime_seconds !== null && `up ${duration(now.uptime_seconds)}`].filter(Boolean).join(" · ");
}
const SINK = ["state", "lag", "changes", "retries", "dead letters", "durable up to"];
function show(now) {
  showHeader(now);
  showThroughput(now);
  $("sinks").replaceChildren(...now.sinks.map(sink => {
    const lag = sink.lag_bytes === null ? "–"
      : sink.lag_bytes ? `${bytes(sink.lag_bytes)}, ${duration(sink.lag_seconds)}` : "none";
    const name = element("th", { scope: "row" }, sink.name);
    if (sink.error) name.append(element("div", { className: "error", textContent: sink.error }));
    return row(SINK, name, [[element("span", { className: sink.state, textContent: sink.state })],
      ...[lag, number(sink.changes), number(sink.retries), number(sink.dead_letters)].map(text => [text, "number"]), [sink.durable]]);
  }));
  const slot = now.slot;
  $("slot-card").hidden = !slot;
  if (slot) pairs($("slot"), [...(slot.error ? [["unknown", slot.error]] : []), ...(slot.error && slot.wal_status === null ? [] : [
    ["WAL that it keeps", bytes(slot.retained)], ["until it may be lost", slot.safe !== null ? bytes(Math.max(slot.safe, 0)) : slot.wal_status === "lost" ? "lost" : "no limit"],
    ["wal_status", slot.wal_status ?? "–"], ["in use", slot.active ? "yes" : "no"]].map(([name, value]) => [slot.error ? `${name}, before` : name, value]))]);
  const journal = now.journal;
  $("journal-card").hidden = !journal;
  if (journal) pairs($("journal"), journal.error ? [["unknown", journal.error]] : [["size", bytes(journal.bytes)],
    ...journal.consumers.map(each => [`not read yet by ${each.name}${each.label && ` (${each.label})`}`, bytes(each.bytes)]),
    ...(journal.prepared ? [["undecided prepared transactions", number(journal.prepared)]] : [])]);
  $("received").hidden = !now.rows.length;
  $("rows").replaceChildren(...now.rows.map(each => row(["inserts", "updates", "deletes", "size"],
    element("th", { scope: "row", textContent: each.table }),
    [number(each.inserts), number(each.updates), number(each.deletes), bytes(each.bytes)].map(text => [text, "number"]))));
  pairs($("memory"), [
    // A block of small rows can be larger than the limit, above which nothing more is read.
    ...now.buffers.map(buffer => [`buffer ${buffer.name}`, (buffer.bytes > buffer.limit
      ? `${bytes(buffer.bytes)}, above ${bytes(buffer.limit)} nothing more is read` : `${bytes(buffer.bytes)} of ${bytes(buffer.limit)}`)
      + (buffer.backpressured ? `: waits for ${buffer.slowest ?? "a sink"}` : "")]),
    ["open and prepared transactions", `${bytes(now.transactions.memory)} in memory, ${bytes(now.transactions.disk)} on disk`],
    ["reconnects", number(now.reconnects)], ["accepted gaps", number(now.gaps)]]);
  $("snapshots").hidden = !now.snapshots.length;
  const line = (name, state, done, rows, pace) => row(["state", "done", "rows", "rows/s"], element("th", { scope: "row", textContent: name }), [[state],
    [element("progress", { max: 1, value: done, ariaLabel: `${name}: part that is done` })], [rows, "number"], [pace, "number"]]);
  const all = now.snapshot, left = now.rates?.snapshot_seconds;
  $("tables").replaceChildren(
    ...(all && all.tables > 1 ? [line("all tables", (all.paused ? "paused" : left ? `${duration(left)} left` : `${number(all.ended)} of ${number(all.tables)} read`)
      + (all.again ? `, ${number(all.again)} again` : ""),
      all.done, number(all.rows), "–")] : []),
    ...now.snapshots.map(table => line(table.name, `${table.state}${table.again ? " again" : ""}`, table.done,
      number(table.rows) + (table.estimated_rows > table.rows ? ` of about ${number(table.estimated_rows)}` : ""),
      number(Math.round(table.rows_per_second)))));
  const more = Object.entries(now.more_snapshots).map(([state, count]) => `${number(count)} ${state}`);
  $("more").hidden = !more.length;
  $("more").textContent = `and ${more.join(", ")}`;
}
new Chart("rows-chart", "rates", { base: 1000, only: "rows", format: rows => `${number(rows)} rows/s` });
new Chart("bytes-chart", "rates", { only: "bytes", format: size => `${bytes(size)}/s` });
new Chart("lag", "lags");
// Sinks without room for a series of their own share one.
function lagsOf(now) {
  const lags = new Map();
  for (const { series, lag_bytes: lag } of now.sinks) if (lag !== null) lags.set(series, Math.max(lag, lags.get(series) ?? 0));
  return Object.fromEntries(lags);
}
watch(show, lagsOf,
  now => now.rates?.now ? { rows: Math.ceil(now.rates.now.rows), bytes: Math.ceil(now.rates.now.bytes) } : {});
