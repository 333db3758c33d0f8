function show(now) {
  showHeader(now);
  const batch = now.batch;
  pairs($("query"), [
    ["last batch", batch ? `${number(batch.number)}, in ${batch.seconds.toFixed(1)} s` : "none yet"], ["restarts", number(now.restarts)], ["last error", now.last_error ?? "none"]]);
  $("tables").replaceChildren(...now.tables.map(table => {
    const name = element("th", { scope: "row" }, table.name);
    if (table.error) name.append(element("div", { className: "error", textContent: table.error }));
    const lag = table.lag_bytes === null ? "–"
      : table.lag_bytes ? `${bytes(table.lag_bytes)}, ${duration(table.lag_seconds)}` : "none";
    return row(["state", "lag", "last batch", "complete up to"], name, [
      [element("span", { className: table.error ? "degraded" : "running", textContent: table.error ? "set aside" : "mirrored" })],
      [lag, "number"], [table.batch === null ? "–" : number(table.batch), "number"], [table.lsn]]);
  }));
  $("others").hidden = !now.more_tables;
  $("others").textContent = `and ${number(now.more_tables)} more`;
}
new Chart("lag", "lags");
watch(show, now => now.lag_bytes === null ? {} : { mirror: now.lag_bytes }, () => ({}));
