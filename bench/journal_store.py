"""Capture into a journal in an object store, beside one in a folder: whole processes, alternating.

    .venv/bin/python bench/journal_store.py [--rows 400000] [--workload mixed] [--rounds 3] [--unsigned]

Each reads the same WAL from its own slot, on the same two cores as the server and S3Proxy, whose CPU is printed as well.
``--unsigned`` leaves payloads unsigned, as clients do over TLS.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measuring import SETTINGS, Bench, Run, measured, tree_cpu
from workloads import WORKLOADS, Workload

from aiorepl import compiled
from aiorepl.testing import EmbeddedServer

HERE = Path(__file__).parent
BUCKET = "bench"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--workload", default="mixed")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--unsigned", action="store_true")
    arguments = parser.parse_args()
    workload = next(workload for workload in WORKLOADS if workload.name == arguments.workload)
    script = HERE.parent / "scripts" / "s3.py"
    command = [sys.executable, str(script), "--serve", BUCKET]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store,
        EmbeddedServer(settings=SETTINGS) as server,
    ):
        assert store.stdout is not None
        environment = {
            "AWS_ENDPOINT": store.stdout.readline().strip(),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
            "AWS_UNSIGNED_PAYLOAD": str(arguments.unsigned).lower(),
        }
        compare(server, workload, arguments.rows, arguments.rounds, environment, store.pid)
        store.communicate()


def compare(
    server: EmbeddedServer,
    workload: Workload,
    rows: int,
    rounds: int,
    environment: dict[str, str],
    store: int,
) -> None:
    """Run both in turns; the first round warms up."""
    bench = Bench(server, "journal_store")
    bench.psql(f"CREATE PUBLICATION bench FOR ALL TABLES; {workload.tables}")
    kinds = ("folder", "store")
    bench.slots([f"{kind}_{number}" for kind in kinds for number in range(rounds + 1)])
    bench.mark()
    workload.write(bench, rows)
    until = bench.psql("SELECT pg_current_wal_lsn()")
    found: dict[str, list[tuple[Run, float]]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind in kinds:
            slot = f"{kind}_{number}"
            with tempfile.TemporaryDirectory(prefix="aiorepl-bench-") as folder:
                to = folder if kind == "folder" else f"s3://{BUCKET}/{slot}"
                consumer = [sys.executable, str(HERE / "consume.py"), "journal", "--dsn", bench.dsn]
                consumer += ["--slot", slot, "--until", until, "--to", to]
                consumer += [
                    part for option in workload.options.items() for part in ("--option", "=".join(option))
                ]
                before = tree_cpu(store)
                run = measured(consumer, slot=slot, dsn=bench.dsn, environment=environment, stdout=None)
                if number:
                    found[kind].append((run, tree_cpu(store) - before))
    print(f"{workload.name}, {rows:,} rows, {'compiled' if compiled.ACTIVE else 'plain Python'}")
    for kind in kinds:
        drain, cpu, walsender = (
            median(getattr(run, name) for run, _ in found[kind]) for name in ("drain", "cpu", "walsender")
        )
        print(
            f"  {kind:8} {rows / drain:10,.0f} rows/s  {drain:6.2f} s  CPU: ours {cpu:5.2f} s, walsender {walsender:5.2f} s, "
            f"S3Proxy {median(spent for _, spent in found[kind]):5.2f} s  peak {max(run.memory for run, _ in found[kind]) >> 20} MiB"
        )
    folder, remote = (median(run.drain for run, _ in found[kind]) for kind in kinds)
    print(f"  the store has {folder / remote:.2f} of the folder's rate")
    bench.drop()


if __name__ == "__main__":
    main()
