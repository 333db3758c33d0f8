"""``make extras``: each extra alone, from the wheel, in a fresh virtual environment, with the feature's smallest real use.

python scripts/extras.py dist/aiorepl-*.whl [EXTRA…]

The servers run from this environment: PostgreSQL, Kafka, NATS and Redis. The environment under test has its one extra and nothing
else. Prints a line for each extra; the exit code is 1 if one failed, and its output is shown.
"""

# ruff: noqa: INP001, S603, T201 - a program that starts programs

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

import brokers  # noqa: E402 - of bench/
import iceberg_rest  # noqa: E402 - beside this
import s3 as s3_server  # noqa: E402 - beside this
from environments import ROWS, Environment, Failed, listening, sql, until  # noqa: E402 - beside this

from aiorepl.testing import EmbeddedServer  # noqa: E402

# A table with more bytes of changes than the driver reduces, and more bytes of files than the command of the verification reads:
# executors do both. No codec makes its text much smaller.
LARGE_ROWS = 200_000
LARGE_BYTES = 256 * 1024 * 1024
LARGE = """
INSERT INTO large SELECT i, (SELECT string_agg(encode(sha512(format('%s %s', i, j)::bytea), 'base64'), '') FROM generate_series(1, 17) j)
FROM generate_series(1, $1::int) i
"""
MIRROR = """
[journal]
url = "{folder}/journal"

[mirror]
tables = ["public.*"]
target = "{folder}/{lake}"
"""
ICEBERG = """
[iceberg]
catalog = "lake"
properties = {properties}
"""
# Read by deltalake's engine: pyarrow's threads can abort the end of a process that scanned files for deltalake.
FILES = """
import sys
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
table = DeltaTable(sys.argv[1])
files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
rows = pa.table(QueryBuilder().register("lake", table).execute("SELECT id FROM lake"))
print(rows.num_rows, sum(file["size_bytes"] for file in files))
"""
SCAN = """
import json, sys
from pyiceberg.catalog import load_catalog
print(load_catalog("lake", **json.loads(sys.argv[1])).load_table("public.rows").scan().to_arrow().num_rows)
"""
APPLY = """
import sys, aiorepl
folder = sys.argv[1]
spark = aiorepl.spark.local_session()
rows = spark.readStream.format("aiorepl").option("journal", folder + "/journal").option("table", "public.rows").load()
query = aiorepl.spark.apply_changes(rows, target=folder + "/applied", keys=["id"])
query.processAllAvailable()
query.stop()
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
print(pa.table(QueryBuilder().register("lake", DeltaTable(folder + "/applied")).execute("SELECT id FROM lake")).num_rows)
"""
OBSERVE = """
import aiorepl
from aiorepl.testing import MemorySink, MemorySource
from opentelemetry.metrics import get_meter
pipeline = aiorepl.Pipeline(MemorySource([]), [MemorySink()])
aiorepl.monitoring.observe(get_meter("extras"), pipeline)
"""


def lines(folder: Path, pattern: str = "*.jsonl") -> int:
    """Count the lines of files."""
    return sum(path.read_bytes().count(b"\n") for path in folder.glob(pattern))


def base(env: Environment) -> None:
    """A snapshot and a stream to files; ``top`` needs a status page, and no other package."""
    env.delivers(
        f'[[sinks]]\ntype = "jsonl"\npath = "{env.folder}/out"\n', lambda: lines(env.folder / "out", "*")
    )
    if "status page" not in (told := env.run("aiorepl", "top", "--once", "http://127.0.0.1:9", code=3)):
        raise Failed(told)
    if "pip install 'aiorepl[parquet]'" not in (
        told := env.run("aiorepl", "journal", "compact", env.folder, code=2)
    ):
        raise Failed(told)


def http(env: Environment) -> None:
    """The status page, metrics, and ``top``."""
    (port,) = brokers._free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with env.pipeline(
        f'[[sinks]]\ntype = "jsonl"\npath = "{env.folder}/out"\n', "--http", f"127.0.0.1:{port}"
    ):
        until(lambda: lines(env.folder / "out", "*") >= ROWS)
        env.run("aiorepl", "top", "--once", url)
        read = f"import urllib.request; assert b'aiorepl_' in urllib.request.urlopen('{url}/metrics').read()"
        env.run("python", "-c", read)


def parquet(env: Environment) -> None:
    """The sink, and compaction of a journal."""
    read = f"import glob, pyarrow.parquet as p; print(sum(p.read_metadata(f).num_rows for f in glob.glob('{env.folder}/out/**/*.parquet', recursive=True)))"
    sink = f'[[sinks]]\ntype = "parquet"\npath = "{env.folder}/out"\n'
    env.delivers(sink, lambda: int(env.run("python", "-c", read)), journal=True)
    env.run("aiorepl", "journal", "compact", "--publish-after", "1s", f"{env.folder}/journal")


def s3(env: Environment) -> None:
    """JSON lines and Parquet, compressed, through obstore."""
    for form in ("jsonl", "parquet"):
        (env.folder / form).mkdir()
    sinks = "".join(
        f'[[sinks]]\ntype = "s3"\nname = "{form}"\nurl = "file://{env.folder}/{form}"\nfiles = "{form}"\n[sinks.batches]\nflush_seconds = 1\n'
        for form in ("jsonl", "parquet")
    )
    written = [env.folder / form for form in ("jsonl", "parquet")]
    with env.pipeline(sinks):
        until(lambda: all(list(folder.rglob("_aiorepl/manifest/*.json")) for folder in written))


def broker(kind: str, start: Callable[[Any], Any]) -> Callable[[Environment], None]:
    """Return the use of a broker's sink."""

    def use(env: Environment) -> None:
        with start(SimpleNamespace(rows=ROWS)) as target:

            def arrived() -> int:
                try:
                    return target.arrived()
                except Exception:  # noqa: BLE001 - of any client: the stream does not exist yet
                    return 0

            options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in target.options.items())
            env.delivers(f'[[sinks]]\ntype = "{kind}"\n{options}', arrived)

    return use


def webhook(env: Environment) -> None:
    """Requests to a receiver."""
    received: list[int] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(body.count(b'"kind"'))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    env.delivers(f'[[sinks]]\ntype = "webhook"\nurl = "{url}"\n', lambda: sum(received))
    server.shutdown()


def opentelemetry(env: Environment) -> None:
    """Metrics of a pipeline for a meter."""
    env.run("python", "-c", OBSERVE)


def journal(env: Environment, statement: str, *arguments: object) -> None:
    """Write a journal with the tables' rows, and with the changes of a statement."""
    slot = f"extras_{env.extra}"
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = $1"
    confirmed = (
        "SELECT confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1"
    )
    with env.pipeline("", journal=True):
        until(lambda: sql(env.dsn, active, slot))
        sql(env.dsn, statement, *arguments)
        end = sql(env.dsn, "SELECT pg_current_wal_lsn()::text")
        until(lambda: sql(env.dsn, confirmed, slot, end))


def spark(env: Environment) -> None:
    """A mirror with a large table, its verification, and ``apply_changes``."""
    journal(env, LARGE, LARGE_ROWS)
    file = env.folder / "mirror.toml"
    file.write_text(MIRROR.format(folder=env.folder, lake="lake"))
    env.run("aiorepl", "spark", "mirror", "--once", file)
    rows, size = map(int, env.run("python", "-c", FILES, env.folder / "lake/public/large").split())
    if rows != LARGE_ROWS or size <= LARGE_BYTES:
        raise Failed(f"{rows} rows for {LARGE_ROWS}, {size} bytes")
    pipeline = env.folder / "pipeline.toml"
    with env.pipeline("", journal=True), env.background("aiorepl", "spark", "mirror", file):
        env.run("aiorepl", "spark", "verify", "--pipeline", pipeline, file)
    sql(env.dsn, "TRUNCATE large")
    if (told := env.run("python", "-c", APPLY, env.folder).split())[-1] != str(ROWS):
        raise Failed(" ".join(told))


def iceberg(env: Environment) -> None:
    """A mirror into each type of catalog that the documents name, as far as one can run here, and the errors of the others."""
    journal(env, "UPDATE rows SET note = 'changed'")
    into(env, type="sql", uri=f"sqlite:///{env.folder}/catalog", warehouse=f"file://{env.folder}/warehouse")
    with iceberg_rest.serving(env.folder) as url:
        into(env, type="rest", uri=url)
    for kind in ("glue", "hive"):
        file = mirror_file(env, type=kind, uri="thrift://127.0.0.1:9")
        if f"pip install 'pyiceberg[{kind}]'" not in (
            told := env.run(
                "aiorepl", "spark", "mirror", "--once", file, code=2, JAVA_HOME="/nowhere", PATH=""
            )
        ):
            raise Failed(told)
    env.install("pyiceberg[glue,hive]")
    # What needs no server: the import of the client.
    load = "from pyiceberg.catalog import load_catalog; load_catalog('lake', type='hive', uri='thrift://127.0.0.1:9')"
    env.run("python", "-c", load)
    # Glue is moto's.
    with s3_server.moto(0, []) as endpoint:
        account = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }
        into(env, account, type="glue", warehouse=f"file://{env.folder}/glue-warehouse")


def mirror_file(env: Environment, **properties: str) -> Path:
    """Write the file of a mirror into a catalog."""
    # A TOML table in one line.
    catalog = f"{{ {', '.join(f'{name} = {json.dumps(value)}' for name, value in properties.items())} }}"
    file = env.folder / f"{properties['type']}.toml"
    state = MIRROR.format(folder=env.folder, lake=f"{properties['type']}-state")
    file.write_text(state + ICEBERG.format(properties=catalog))
    return file


def into(env: Environment, variables: dict[str, str] | None = None, **properties: str) -> None:
    """Mirror into a catalog, and count the rows there."""
    given = variables or {}
    env.run("aiorepl", "spark", "mirror", "--once", mirror_file(env, **properties), **given)
    if (told := env.run("python", "-c", SCAN, json.dumps(properties), **given).split())[-1] != str(ROWS):
        raise Failed(f"{properties['type']}: {' '.join(told)}")


def cluster(env: Environment) -> None:
    """The environment of ``examples/spark_cluster``, on a cluster of this machine, whose Spark is the extra's."""
    journal(env, "UPDATE rows SET note = 'changed'")
    place = env.folder / "cluster"
    shutil.copytree(ROOT / "examples" / "spark_cluster", place)
    (port, http) = brokers._free_ports(2)
    settings = {
        "PATH": f"{env.bin}:{os.environ['PATH']}",
        "SPARK_MASTER_PORT": str(port),
        "JOURNAL": f"{env.folder}/journal",
        "LAKE": f"{env.folder}/lake",
    }
    env.run("sh", place / "pack.sh", f"{env.wheel}[http,s3]", cwd=place, **settings)
    with env.background("sh", place / "start.sh", cwd=place, **settings):
        until(lambda: listening(port))
        submit = (f"spark://127.0.0.1:{port}", "--http", f"127.0.0.1:{http}", "--once")
        env.run("sh", place / "submit.sh", *submit, cwd=place, **settings)
    rows, _ = env.run("python", "-c", FILES, env.folder / "lake/public/rows").split()
    if rows != str(ROWS):
        raise Failed(f"{rows} rows for {ROWS}")


def testing(env: Environment) -> None:
    """A server from the wheel, and the conformance tests."""
    start = "from aiorepl.testing import EmbeddedServer as S\nwith S() as s: print(s.dsn)"
    env.run("python", "-c", start)
    (env.folder / "test_sink.py").write_text(
        (ROOT / "tests/testing/test_memory_sink_conformance.py").read_text()
    )
    env.run("python", "-m", "pytest", "-q", "test_sink.py")


USES: dict[str, Callable[[Environment], None]] = {
    "": base,
    "uvloop": base,
    "http": http,
    "opentelemetry": opentelemetry,
    "parquet": parquet,
    "s3": s3,
    "webhook": webhook,
    "nats": broker("nats", brokers.nats),
    "redis": broker("redis", brokers.redis),
    "kafka": broker("kafka", brokers.kafka),
    "testing": testing,
    "spark": spark,
    "iceberg": iceberg,
    "cluster": cluster,
}
"""The extras, each with its use; ``cluster`` is a second one of ``spark``. ``demo`` is used by ``make demo``, which installs it alone."""


def tried(extra: str, wheel: Path, dsn: str) -> bool:
    """Install an extra, and use it. Say how that went."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aiorepl extras ") as name:
        folder = Path(name)
        try:
            subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
            env = Environment(extra or "base", wheel, folder / "venv/bin", folder, dsn)
            installs = "spark" if extra == "cluster" else extra
            env.install(f"{wheel}[{installs}]" if installs else wheel)
            installed = time.monotonic()
            USES[extra](env)
        except (Failed, OSError, subprocess.SubprocessError) as error:
            print(
                f"extra {extra or '(base)':14} FAILED after {time.monotonic() - began:.0f} s: {error}",
                flush=True,
            )
            return False
    now = time.monotonic()
    print(
        f"extra {extra or '(base)':14} works: installed in {installed - began:3.0f} s, used in {now - installed:3.0f} s",
        flush=True,
    )
    return True


def main() -> int:
    """Try the extras that the arguments name, or all."""
    wheel, *extras = sys.argv[1:]
    with EmbeddedServer() as server:
        create = "CREATE TABLE rows (id int PRIMARY KEY, note text); CREATE TABLE large (id int PRIMARY KEY, note text)"
        for statement in (
            *create.split(";"),
            f"INSERT INTO rows SELECT i, 'row ' || i FROM generate_series(1, {ROWS}) i",
        ):
            sql(server.dsn, statement)
        sql(server.dsn, "CREATE PUBLICATION extras FOR ALL TABLES")
        results = [tried(extra, Path(wheel).resolve(), server.dsn) for extra in (extras or USES)]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
