"""What a slot costs a server: CPU of its walsender, if its publication has all of the tables, a half, a quarter, and none of them.

    .venv/bin/python bench/slots.py [--rows 400000] [--rounds 5]

Eight tables get the same rows, in transactions of 10 rows of each table. pg_recvlogical reads the slots one after another, each from the
same start to the same end; the round with the least CPU counts, because other programs may run. Then two slots read one large
transaction, of a table that only one of them publishes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from measuring import SETTINGS, Bench
from workloads import MIXED, MIXED_ROW

from aiorepl.testing import EmbeddedServer

TABLES = [f"t{number}" for number in range(8)]
_ROWS = 10
"""Of each table in a transaction."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    parts = {"all": TABLES, "half": TABLES[:4], "quarter": TABLES[:2], "none": []}
    slots = {name: [f"{name}_{number}" for number in range(arguments.rounds)] for name in parts}
    with EmbeddedServer(settings={**SETTINGS, "fsync": "off"}) as server:
        bench = Bench(server, "slots")
        prepare(bench, {slot: parts[name] for name, each in slots.items() for slot in each})
        written, end = write(bench, arguments.rows)
        print(
            f"{arguments.rows:,} rows in 8 tables, {written / 1e6:,.0f} MB of WAL, PostgreSQL {server.version}"
        )
        found = [
            {name: read(bench, each[number], end) for name, each in slots.items()}
            for number in range(arguments.rounds)
        ]
        for name in slots:
            cpu, size = min(each[name] for each in found)
            print(f"{name}: {cpu:.2f} s of CPU, {size / 1e6:,.0f} MB received", flush=True)
        bench.psql(
            f"INSERT INTO t7 SELECT {MIXED_ROW.format(i='i')} FROM generate_series(10000000, 10499999) i"
        )
        end = bench.psql("SELECT pg_switch_wal()")
        for slot in ("all_0", "quarter_0"):
            cpu, size = read(bench, slot, end)
            spilled = bench.psql(
                f"SELECT spill_bytes FROM pg_stat_replication_slots WHERE slot_name = '{slot}'"
            )
            print(
                f"one transaction of 500,000 rows, {slot}: {cpu:.2f} s of CPU, {size / 1e6:,.0f} MB received, "
                f"{int(spilled) / 1e6:,.0f} MB spilled"
            )


def prepare(bench: Bench, publications: dict[str, Sequence[str]]) -> None:
    """Create the tables, and a publication and a slot of the same name for each part of the tables."""
    for table in TABLES:
        bench.psql(f"CREATE TABLE {table} ({MIXED})")
    bench.psql("CREATE TABLE never (id int PRIMARY KEY)")
    for name, tables in publications.items():
        bench.psql(f"CREATE PUBLICATION {name} FOR TABLE {', '.join(tables or ['never'])}")
    inserts = " ".join(
        f"INSERT INTO {table} SELECT {MIXED_ROW.format(i='i')} FROM generate_series(start, start + {_ROWS - 1}) i;"
        for table in TABLES
    )
    bench.psql(
        f"CREATE PROCEDURE load(lowest bigint, count bigint) LANGUAGE plpgsql AS $$ BEGIN "
        f"FOR start IN lowest .. lowest + count - 1 BY {_ROWS} LOOP {inserts} COMMIT; END LOOP; END $$"
    )
    bench.slots(list(publications))
    bench.mark()


def write(bench: Bench, rows: int) -> tuple[int, str]:
    """Write the rows. Return the bytes of WAL, and its end."""
    start = bench.psql("SELECT pg_current_wal_lsn()")
    bench.psql(f"CALL load(0, {rows // len(TABLES)})")
    end = bench.psql("SELECT pg_switch_wal()")
    bench.psql("CHECKPOINT")
    return int(bench.psql(f"SELECT '{end}'::pg_lsn - '{start}'")), end


def read(bench: Bench, slot: str, end: str) -> tuple[float, int]:
    """Read a slot to an LSN. Return the seconds of CPU of its walsender, and the bytes that it sent."""
    before = ended_cpu(bench.server)
    command = [
        str(bench.server.bin_dir / "pg_recvlogical"),
        "-d",
        bench.dsn,
        "--slot",
        slot,
        "--start",
        "--no-loop",
    ]
    command += ["--endpos", end, "-f", "-", "-o", "proto_version=1", "-o", f"publication_names={slot}"]
    receiver = subprocess.Popen(command, stdout=subprocess.PIPE)
    counting = subprocess.Popen(["wc", "-c"], stdin=receiver.stdout, stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.close()
    size = int(counting.communicate()[0])
    if receiver.wait():
        raise SystemExit("pg_recvlogical failed")
    while walsenders(bench.server):
        time.sleep(0.05)
    return ended_cpu(bench.server) - before, size


def walsenders(server: EmbeddedServer) -> list[str]:
    """Return the server's processes that send WAL, and those of them that its main process has not reaped yet."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,state=,args=", "--ppid", str(server.pid)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return [line for line in listed.stdout.splitlines() if "walsender" in line or "defunct" in line]


def ended_cpu(server: EmbeddedServer) -> float:
    """Return the seconds of CPU of the server's processes that have ended."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
