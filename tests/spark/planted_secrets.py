"""Nothing that a pipeline and its Spark mirror show contains passwords, tokens or rows.

``make audit`` runs this, and ``make test`` does not, because of the time that Spark with its UI takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import asyncpg
import pytest
from deltalake import DeltaTable

from aiorepl.testing.listener import Listener
from tests.object_stores import KEYS

pytestmark = [
    pytest.mark.xdist_group("spark-programs"),
    pytest.mark.usefixtures("quick_java"),
    pytest.mark.server,
]

COMMAND = Path(sys.executable).with_name("aiorepl")
DEADLINE = 120.0
ROW, REJECTED = "planted-row", "planted-row-that-the-lake-rejects"
STORE = """
[journal]
url = "${BUCKET}/journal"
config = { endpoint = "${S3}", region = "us-east-1", access_key_id = "test", secret_access_key = "file:${SECRETS}/s3" }
"""
PIPELINE = """
[source]
dsn = "file:${SECRETS}/dsn"
slot = "${SLOT}"
publication = "p"
create_slot = true
[[sinks]]
type = "webhook"
name = "hook"
url = "http://127.0.0.1:${PORT}/hook"
secrets = ["file:${SECRETS}/signing"]
bearer = "file:${SECRETS}/bearer"
[sinks.batches]
flush_seconds = 0.05
"""
MIRROR = """
[mirror]
tables = ["public.*"]
checkpoint = "${FOLDER}/checkpoint"
[mirror.target]
url = "${BUCKET}/lake"
config = { endpoint = "${S3}", region = "us-east-1", access_key_id = "test", secret_access_key = "file:${SECRETS}/s3" }
[spark]
master = "local[1]"
[spark.conf]
"spark.driver.memory" = "512m"
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.ui.port" = "${UI}"
"spark.ui.showConsoleProgress" = "false"
"spark.sql.shuffle.partitions" = "1"
"spark.local.dir" = "${FOLDER}/local"
"spark.eventLog.enabled" = "true"
"spark.eventLog.dir" = "${FOLDER}/events"
"spark.eventLog.compress" = "false"
"spark.hadoop.fs.s3a.secret.key" = "file:${SECRETS}/hadoop"
"""
PLANTED = {
    "s3": KEYS["secret_access_key"],
    "signing": "whsec_cGxhbnRlZC1zaWduaW5nLWtleS0zMi1ieXRlcyE=",
    "bearer": "planted-bearer",
    "hadoop": "planted-hadoop",
}
PAGES = 80


class Receiver:
    """A receiver of webhooks that rejects its first request with an answer that quotes it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.listener = Listener(self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                assert length is not None
                body = await reader.readexactly(int(length[1]))
                first = not self.bodies
                self.bodies.append(body)
                status, answer = (b"503 No", head + body) if first else (b"200 OK", b"")
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(answer), answer))
        writer.transport.abort()


class Run:
    """A pipeline and its mirror, and what they show.

    :ivar places: texts by the place where anybody could read them.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        # The tests' own variables have the server's password.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PG", "PYTEST"))
        }
        self.environment = {**inherited, **environment}
        self.places: dict[str, str] = {}

    @asynccontextmanager
    async def command(self, name: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A command of aiorepl whose output goes to a file."""
        output = self.folder / f"{name}.log"
        with output.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                COMMAND,
                "--verbose",
                *arguments,
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
            )
        try:
            yield process
        finally:
            if process.returncode is None:
                self.look_at_processes(name, process.pid)
                process.terminate()
                await asyncio.wait_for(process.wait(), DEADLINE)
            self.places[f"output of {name}"] = output.read_text()

    async def until(self, name: str, good) -> None:
        """Poll until ``good`` returns true."""
        try:
            async with asyncio.timeout(DEADLINE):
                while not await asyncio.to_thread(good):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pytest.fail(f"not within {DEADLINE} s: {name}\n{self.log(name)}")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def look_at_processes(self, name: str, pid: int) -> None:
        """Keep the arguments and environments of a process and its descendants."""
        for each in [pid, *descendants(pid)]:
            with contextlib.suppress(OSError):
                for kind in ("cmdline", "environ"):
                    text = Path(f"/proc/{each}/{kind}").read_text(errors="replace").replace("\0", " ")
                    self.places[f"{kind} of {name}, process {each}"] = text

    def look_at_pages(self, url: str, first: list[str]) -> None:
        """Keep the pages of a site: some paths, and the pages to which they link."""
        waiting, seen = [urljoin(url, path) for path in first], set[str]()
        while waiting and len(seen) < PAGES:
            page = waiting.pop(0)
            if page in seen:
                continue
            seen.add(page)
            text = get(page)
            self.places[page] = text
            links = [urljoin(page, link) for link in re.findall(r"""(?:href|src)=["']([^"'#]+)""", text)]
            links = [link.replace("&amp;", "&") for link in links]
            waiting += [
                link
                for link in links
                if link.startswith(url) and "/static/" not in link and "kill" not in link
            ]

    def look_at_files(self, folder: Path) -> None:
        """Keep the files of a folder, except the rows that are staged."""
        for path in folder.rglob("*"):
            if path.is_file() and "_staging" not in path.parts:
                self.places[str(path)] = path.read_bytes().decode(errors="replace")


def get(url: str) -> str:
    """The body of an answer, also of an error."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started."""
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, thread.read_text().split()):
                yield child
                yield from descendants(child)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def test_nothing_shows_secrets_or_rows(database, slot_name, bucket, tmp_path):
    """Secrets and rows are in no output, page, plan, progress, event log, checkpoint, argument or environment."""
    private = tmp_path / "secrets"
    for folder in (private, tmp_path / "events", tmp_path / "local"):
        folder.mkdir()
    for name, value in {**PLANTED, "dsn": database}.items():
        (private / name).write_text(value)
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
    await connection.execute(f"INSERT INTO items VALUES (0, '{ROW}')")
    (tmp_path / "pipeline.toml").write_text(PIPELINE + STORE + "snapshot = true\n")
    (tmp_path / "mirror.toml").write_text(STORE + MIRROR)
    receiver, ui = Receiver(), f"http://127.0.0.1:{free_port()}/"
    await receiver.listener.listen()
    run = Run(
        tmp_path,
        {
            "SECRETS": str(private),
            "FOLDER": str(tmp_path),
            "SLOT": slot_name,
            "BUCKET": f"s3://{bucket.name}",
            "S3": bucket.endpoint,
            "PORT": str(receiver.listener.port),
            "UI": str(urlsplit(ui).port),
        },
    )
    lake = f"s3://{bucket.name}/lake/public/items"
    storage = {f"aws_{name}": value for name, value in KEYS.items()}
    storage |= {"aws_endpoint": bucket.endpoint, "aws_allow_http": "true"}

    def mirrored() -> bool:
        return (
            DeltaTable.is_deltatable(lake, storage)
            and len(DeltaTable(lake, storage_options=storage).to_pyarrow_table()) == 2
        )

    def served(name: str) -> str | None:
        found = re.search(r"http://127\.0\.0\.1:\d+/", run.log(name))
        return None if found is None else found[0]

    async with run.command("pipeline", "run", "--http", "127.0.0.1:0", "pipeline.toml"):
        await run.until("pipeline", lambda: b"planted-row" in b"".join(receiver.bodies[1:]))
        await connection.execute(f"INSERT INTO items VALUES (1, '{ROW}')")
        http = f"127.0.0.1:{free_port()}"
        async with run.command("mirror", "spark", "mirror", "--http", http, "mirror.toml") as mirror:
            await run.until("mirror", lambda: mirror.returncode is not None or mirrored())
            assert mirror.returncode is None, run.log("mirror")
            applications = json.loads(await asyncio.to_thread(get, urljoin(ui, "api/v1/applications")))
            api = f"api/v1/applications/{applications[0]['id']}/"
            rest = [
                "environment",
                "jobs",
                "stages?details=true",
                "allexecutors",
                "sql?details=true&planDescription=true",
            ]
            first = ["", "environment/", "SQL/", "StreamingQuery/", *(api + path for path in rest)]
            await asyncio.to_thread(run.look_at_pages, ui, first)
            await asyncio.to_thread(
                run.look_at_pages, f"http://{http}/", ["status", "readyz", "metrics", "livez"]
            )
            page = served("pipeline")
            await asyncio.to_thread(run.look_at_pages, page, ["", "status", "readyz", "metrics"])
            run.look_at_processes("mirror", mirror.pid)
            DeltaTable(lake, storage_options=storage).alter.add_constraint({"short": "id < 2"})
            await connection.execute(f"INSERT INTO items VALUES (2, '{REJECTED}')")
            await asyncio.wait_for(mirror.wait(), DEADLINE)
    await connection.close()
    receiver.listener.close()
    await receiver.listener.closed()
    for folder in ("events", "checkpoint", "local"):
        run.look_at_files(tmp_path / folder)

    words = {*PLANTED.values(), urlsplit(database).password, ROW}
    found = [(place, word) for place, text in run.places.items() for word in words if word in text]
    assert [] == found
    # The places that were searched have the expected contents.
    assert "public.items" in run.places["output of mirror"]
    assert any("QueryTerminatedEvent" in text for text in run.places.values())
    assert any("MicroBatchScan" in text for place, text in run.places.items() if "/sql?" in place)
    assert sum(place.startswith("cmdline of mirror") for place in run.places) >= 3
