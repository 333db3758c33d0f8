"""How fast does the postgres sink apply? Against a sink that throws everything away, on the same WAL, in turns.

    .venv/bin/python bench/postgres.py [--rows 1000000] [--rounds 3]

Inserts: transactions of 10,000 rows. Mixed: the same rows updated, deleted and inserted in random order, in transactions of
100 changes. Each run is a process of its own; its CPU is the pipeline's, without the servers'.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time

from aiorepl import Batch, Pipeline, Sink, Source
from aiorepl.testing import EmbeddedServer
from aiorepl_sinks.postgres import Postgres

TABLE = """
CREATE TABLE rows (id bigint PRIMARY KEY, name text, amount numeric(12,2), flag boolean, at timestamptz, data jsonb,
                   n integer, f double precision)"""
INSERTS = """
DO $$ BEGIN
  FOR i IN 0..{rows} / 10000 - 1 LOOP
    INSERT INTO rows SELECT i * 10000 + g, 'customer name ' || g, g * 1.25, g % 2 = 0, now(),
                            jsonb_build_object('k', g, 'v', 'abc'), g, g * 0.5 FROM generate_series(1, 10000) g;
    COMMIT;
  END LOOP;
END $$"""
MIXED = """
DO $$ DECLARE c float; k bigint; BEGIN
  PERFORM setseed(0.5);
  FOR i IN 1..{rows} / 200 LOOP
    FOR j IN 1..100 LOOP
      c := random(); k := 1 + (random() * ({rows} - 1))::bigint;
      IF c < 0.6 THEN UPDATE rows SET n = n + 1, name = 'changed ' || i WHERE id = k;
      ELSIF c < 0.8 THEN DELETE FROM rows WHERE id = k;
      ELSE INSERT INTO rows SELECT k, 'again', 1, true, now(), '{{}}', 0, 0 WHERE NOT EXISTS (SELECT FROM rows WHERE id = k);
      END IF;
    END LOOP;
    COMMIT;
  END LOOP;
END $$"""
# Mixed runs go on where the insert runs of the same kind ended.
KINDS = {"null": None, "upsert": {}, "strict": {"mode": "strict"}}


class Null(Sink):
    """Takes everything and keeps nothing."""

    async def write(self, batch: Batch) -> None:
        for change in batch.changes:
            assert change


def main() -> None:
    """Fill a server, and drain it into each sink in turns."""
    if sys.argv[1:2] == ["drain"]:
        asyncio.run(drain(*sys.argv[2:]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    runs = [(round_, kind) for round_ in range(arguments.rounds) for kind in KINDS]
    with EmbeddedServer() as source, EmbeddedServer() as target:
        sql(source, source.dsn, TABLE, "CREATE PUBLICATION bench FOR TABLE rows")
        for round_, kind in runs:
            name = f"{kind}_{round_}"
            sql(source, source.dsn, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
            sql(target, target.dsn, f"CREATE DATABASE {name}")
            sql(target, target.dsn_for(name), TABLE)
        for load, fill in (("inserts", INSERTS), ("mixed", MIXED)):
            sql(source, source.dsn, fill.format(rows=arguments.rows))
            results: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in KINDS}
            for round_, kind in runs:
                name = f"{kind}_{round_}"
                results[kind].append(measure(source.dsn, name, kind, target.dsn_for(name)))
                if kind != "null":
                    require_equal(source, target, name)
            report(load, results)


async def drain(source: str, slot: str, kind: str, target: str) -> None:
    """Deliver all there is; prints how many changes that were."""
    options = KINDS[kind]
    sink = Null() if options is None else Postgres(target, **options)
    pipeline = Pipeline(Source(source, slot=slot, publication="bench"), {"mirror": sink}, until="now")
    await pipeline.run()
    print(pipeline.statistics().sinks["mirror"].changes)


def measure(*arguments: str) -> tuple[float, float, int]:
    """Wall and CPU seconds of a run, and its changes."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "drain", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    wall, after = time.perf_counter() - began, os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, cpu, int(done.stdout)


def report(load: str, results: dict[str, list[tuple[float, float, int]]]) -> None:
    """Medians, and ratios pair by pair."""
    for kind, runs in results.items():
        wall, cpu = (statistics.median(run[place] for run in runs) for place in (0, 1))
        ratios = ", ".join(f"{run[0] / null[0]:.2f}" for run, null in zip(runs, results["null"], strict=True))
        cpus = ", ".join(f"{run[1] / null[1]:.2f}" for run, null in zip(runs, results["null"], strict=True))
        print(
            f"{load:8} {kind:7} {wall:6.2f} s wall {cpu:6.2f} s CPU {runs[0][2] / wall:10,.0f} changes/s"
            f"   over null: wall {ratios}; CPU {cpus}",
            flush=True,
        )


def require_equal(source: EmbeddedServer, target: EmbeddedServer, name: str) -> None:
    """A fast mirror that is wrong is none."""
    check = "SELECT count(*), sum(hashtext(r::text)::bigint) FROM rows r"
    assert sql(source, source.dsn, check) == sql(target, target.dsn_for(name), check)


def sql(server: EmbeddedServer, dsn: str, *statements: str) -> str:
    """Run SQL and return what it prints."""
    command = [str(server.bin_dir / "psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", "-d", dsn]
    for statement in statements:
        command += ["-c", statement]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
