function show(now) {
  showHeader(now);
  $("sinks").replaceChildren(...now.sinks.map(sink => {
    const lag = sink.lag_bytes === null ? "–"
      : sink.lag_bytes ? `${bytes(sink.lag_bytes)}, ${duration(sink.lag_seconds)}` : "none";
    const name = element("th", { scope: "row" }, sink.name);
    if (sink.error) name.append(element("div", { className: "error", textContent: sink.error }));
    return element("tr", {}, name, element("td", {}, element("span", { className: sink.state, textContent: sink.state })),
      ...[lag, number(sink.changes), number(sink.retries), number(sink.dead_letters)].map(
        text => element("td", { className: "number", textContent: text })),
      element("td", { textContent: sink.durable }));
  }));
  const slot = now.slot;
  $("slot-card").hidden = !slot;
  if (slot) pairs($("slot"), slot.error ? [["unknown", slot.error]] : [
    ["WAL that it keeps", bytes(slot.retained)], ["until it may be lost", slot.safe === null ? "no limit" : bytes(slot.safe)],
    ["wal_status", slot.wal_status ?? "–"], ["in use", slot.active ? "yes" : "no"]]);
  const journal = now.journal;
  $("journal-card").hidden = !journal;
  if (journal) pairs($("journal"), journal.error ? [["unknown", journal.error]] : [["size", bytes(journal.bytes)],
    ...journal.consumers.map(each => [`not read yet by ${each.name}`, bytes(each.bytes)]),
    ...(journal.prepared ? [["undecided prepared transactions", number(journal.prepared)]] : [])]);
  $("received").hidden = !now.rows.length;
  $("rows").replaceChildren(...now.rows.map(each => element("tr", {}, element("th", { scope: "row", textContent: each.table }),
    ...[number(each.inserts), number(each.updates), number(each.deletes), bytes(each.bytes)].map(
      text => element("td", { className: "number", textContent: text })))));
  pairs($("memory"), [
    ...now.buffers.map(buffer => [`buffer ${buffer.name}`, `${bytes(buffer.bytes)} of ${bytes(buffer.limit)}`
      + (buffer.backpressured ? `, full: waits for ${buffer.slowest ?? "a sink"}` : "")]),
    ["open and prepared transactions", `${bytes(now.transactions.memory)} in memory, ${bytes(now.transactions.disk)} on disk`],
    ["reconnects", number(now.reconnects)], ["accepted gaps", number(now.gaps)]]);
  $("snapshots").hidden = !now.snapshots.length;
  $("tables").replaceChildren(...now.snapshots.map(table => element("tr", {},
    element("th", { scope: "row", textContent: table.name }), element("td", { textContent: table.state }),
    element("td", {}, element("progress", { max: 1, value: table.done, ariaLabel: `${table.name}: part that is done` })),
    element("td", { className: "number", textContent: number(table.rows) }))));
}
watch(show, now => Object.fromEntries(now.sinks.map(sink => [sink.name, sink.lag_bytes ?? 0])));
