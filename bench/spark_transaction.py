"""One transaction of many rows, from a server through a journal into a Delta table, in as little memory as by default.

Java has 1 GiB of heap, a batch has 256 MiB of the journal, and what Spark collects is limited to 20 MiB.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Final

from measuring import SETTINGS, Bench
from processes import Measured, run, step

from aiorepl.testing import EmbeddedServer

TABLE: Final = "id bigint PRIMARY KEY, customer int, token text, at timestamptz, amount numeric(12,2)"
ROW: Final = "i, i % 1000, md5(i::text), now() + i * interval '1 ms', i * 0.25"
# A sum over rows does not depend on their order.
_SUM: Final = """
SELECT count(*) || ' ' || sum(id) || ' ' || sum(('x' || left(md5(concat_ws(
  '|', id, customer, token, (extract(epoch FROM at) * 1000000)::bigint, amount)), 12))::bit(48)::bigint) FROM large
"""


def transaction(folder: Path, rows: int) -> None:
    """Measure an insert of all rows, then an update of all rows."""
    journal, lake = folder / "journal", folder / "lake"
    with EmbeddedServer(settings=SETTINGS) as server:
        bench = Bench(server, "transaction")
        bench.psql(f"CREATE TABLE large ({TABLE}); CREATE PUBLICATION bench FOR ALL TABLES")
        bench.psql("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        for name, statement in (
            ("insert", f"INSERT INTO large SELECT {ROW} FROM generate_series(1, {rows}) i"),
            ("update", "UPDATE large SET customer = customer + 1, amount = amount * 2"),
        ):
            bench.psql(statement)
            captured = run(step("capture", bench.dsn, journal))
            print(f"{name} in one transaction, to the journal: {captured.rates(rows)}", flush=True)
            mirrored = _mirror(journal, lake)
            batches = json.loads(mirrored.output.splitlines()[-1])["batches"]
            print(
                f"{name} in one transaction, to Delta in {batches} batches: {mirrored.rates(rows)}",
                flush=True,
            )
            _compare(bench, lake)


def _mirror(journal: Path, lake: Path) -> Measured:
    limit = {"JAVA_TOOL_OPTIONS": "-Dspark.driver.maxResultSize=20m"}
    return run(step("mirror", journal, lake, "1g"), os.environ | limit)


def _compare(bench: Bench, lake: Path) -> None:
    """Compare the number of rows and a checksum of all values with the source's."""
    from deltalake import DeltaTable

    count = keys = total = 0
    table = DeltaTable(lake / "public" / "large").to_pyarrow_dataset()
    for batch in table.to_batches(columns=["id", "customer", "token", "at", "amount"]):
        at = batch["at"].cast("int64").to_pylist()
        columns = [batch[name].to_pylist() for name in ("id", "customer", "token")]
        for key, customer, token, time, amount in zip(*columns, at, batch["amount"].to_pylist(), strict=True):
            text = f"{key}|{customer}|{token}|{time}|{amount}"
            total += int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:6])
            count += 1
            keys += key
    expected = bench.psql(_SUM)
    if expected != f"{count} {keys} {total}":
        raise SystemExit(f"the table differs: {expected} in the source, {count} {keys} {total} in the lake")
    print(f"equal to the source: {count:,} rows", flush=True)
