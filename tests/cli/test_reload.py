"""``aiorepl run`` reads its file again after SIGHUP, and carries out requests with the token of [http]."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.deployment import COMMAND, FILE, JOURNAL, Deployment
from tests.waiting import DEADLINE, until

pytestmark = pytest.mark.by_day

TOKEN = "0123456789abcdef"
HTTP = f'[http]\ntoken = "${{TOKEN:-{TOKEN}}}"\n'
LATE = '[[sinks]]\ntype = "jsonl"\nname = "late"\npath = "late"\n'


class Page:
    """The status page of a process."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def post(self, path: str, token: str | None = TOKEN, **headers: str) -> tuple[int, dict]:
        """Send a request; return the status and the answer."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, b"", headers)
        return await asyncio.to_thread(self._send, request)

    async def sinks(self) -> dict[str, str]:
        """The state of each sink, by name."""
        _, status = await asyncio.to_thread(self._send, urllib.request.Request(f"{self.url}/status"))
        return {sink["name"]: sink["state"] for sink in status["sinks"]}

    async def paused(self) -> dict[str, str]:
        """The metric of paused sinks, by name."""
        opened = await asyncio.to_thread(urllib.request.urlopen, f"{self.url}/metrics", timeout=DEADLINE)
        with opened as answer:
            return dict(re.findall(r'(?m)^aiorepl_sink_paused{.*sink="(\w+)"} (.*)$', answer.read().decode()))

    @staticmethod
    def _send(request: urllib.request.Request) -> tuple[int, dict]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=DEADLINE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            body = error.read()
            return error.code, json.loads(body) if body.startswith(b"{") else {}


async def line(process, pattern: str) -> re.Match[str]:
    """Read the log until a line matches."""
    async with asyncio.timeout(DEADLINE):
        while text := (await process.stderr.readline()).decode():
            if found := re.search(pattern, text):
                return found
    raise AssertionError(f"no line has {pattern}")


def late_ids(deployment: Deployment) -> list[int]:
    text = "".join(path.read_text() for path in sorted((deployment.folder / "late").glob("*")))
    return [json.loads(each)["key"]["id"] for each in text.rpartition("\n")[0].splitlines()]


async def test_hang_up(deployment):
    """Sinks are added, altered and removed; a file with an error or another change alters no sink, and the log says why."""
    file = deployment.folder / "aiorepl.toml"
    file.write_text(FILE + JOURNAL)
    async with deployment.running() as process:
        await line(process, "running: sinks archive")
        walsender = await deployment.connection.fetchval("SELECT active_pid FROM pg_replication_slots")
        file.write_text((FILE + LATE).replace('"delete"', '"insert"') + JOURNAL)
        process.send_signal(signal.SIGHUP)
        await line(process, r"INFO aiorepl.toml was read again: added late; altered jsonl\n")
        await deployment.connection.execute("INSERT INTO items VALUES (1)")
        await deployment.delivers(1, process, "jsonl")
        await until(lambda: late_ids(deployment), lambda found: found == [0, 1])

        for text, error in (
            (
                FILE + '[[sinks]]\ntype = "jsonl"\npth = "x"\n' + JOURNAL,
                r"aiorepl.toml: sinks\[3\].pth: unknown",
            ),
            (FILE.replace("[[sinks]]", "[[sinks", 1), "is not TOML"),
            (
                FILE.replace("1MiB", "2MiB") + JOURNAL + 'retention = "7d"\n',
                r"only \[\[sinks\]\] can change .*: restart it to change journal.retention, pipeline.buffer_bytes\n",
            ),
            (FILE, r"restart it to change \[journal\], journal.snapshot, journal.url\n"),
        ):
            file.write_text(text)
            process.send_signal(signal.SIGHUP)
            await line(process, f"ERROR nothing is changed: .*{error}")
        await deployment.connection.execute("INSERT INTO items VALUES (2)")
        await until(lambda: late_ids(deployment), lambda found: found == [0, 1, 2])

        file.write_text(FILE + JOURNAL)
        process.send_signal(signal.SIGHUP)
        await line(process, "added|altered jsonl; removed late")
        process.send_signal(signal.SIGHUP)
        await line(process, "was read again: no changes\n")
        await deployment.connection.execute("INSERT INTO items VALUES (3)")
        await deployment.delivers(4, process)
        assert walsender == await deployment.connection.fetchval(
            "SELECT active_pid FROM pg_replication_slots"
        )
        await deployment.stop(process, signal.SIGTERM)
    assert [0, 1, 2] == late_ids(deployment)
    assert [0, 1, 2, 3] == [event["key"]["id"] for event in deployment.events("archive")]


async def test_hang_up_before_the_file_is_read(deployment):
    """The pipeline starts, and then reads its file again."""
    file = deployment.folder / "aiorepl.toml"
    # A pipe holds the process until it is written to.
    os.mkfifo(file)
    process = await deployment.start(stderr=asyncio.subprocess.PIPE)
    try:

        def handled() -> int:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (signal.SIGHUP - 1) & 1

        await until(handled, bool)
        process.send_signal(signal.SIGHUP)
        with file.open("w") as pipe:
            file.unlink()
            file.write_text(FILE)
            pipe.write(FILE)
        await line(process, "was read again: no changes\n")
        await deployment.stop(process, signal.SIGTERM)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def test_hang_up_without_a_journal(deployment):
    """A changed sink is refused, and the pipeline continues."""
    file = deployment.folder / "aiorepl.toml"
    file.write_text(FILE)
    async with deployment.running() as process:
        file.write_text(FILE + LATE)
        process.send_signal(signal.SIGHUP)
        await line(
            process, "ERROR nothing is changed: .*without a .journal., .*: restart it to change late\\n"
        )
        file.write_text(FILE)
        process.send_signal(signal.SIGHUP)
        await line(process, "was read again: no changes\n")
        await deployment.connection.execute("INSERT INTO items VALUES (1)")
        await deployment.delivers(1, process)
        await deployment.stop(process, signal.SIGTERM)


async def test_a_closed_terminal(deployment):
    """SIGHUP from a closed terminal stops the pipeline in order."""
    (deployment.folder / "aiorepl.toml").write_text(FILE + JOURNAL)
    parent, terminal = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        # The shell's child must be the leader of a session with the terminal.
        *("setsid", "--ctty", *COMMAND),
        cwd=deployment.folder,
        env=os.environ | {"SECRETS": str(deployment.folder), "SLOT": deployment.slot},
        stdin=terminal,
        stderr=asyncio.subprocess.PIPE,
    )
    os.close(terminal)
    try:
        await deployment.until(deployment.streams, process)
        process.send_signal(signal.SIGHUP)
        await line(process, "was read again: no changes\n")
        os.close(parent)
        _, told = await asyncio.wait_for(process.communicate(), DEADLINE)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    assert 0 == process.returncode
    assert told.decode().endswith(" INFO stopped\n")


DEAD_LETTERS = """
[[sinks]]
type = "postgres"
name = "target"
dsn = "file:${SECRETS}/dsn"
tables = {"public.items" = "other.items"}
on_error = "dead_letter"
dead_letters = "letters"
retry = {attempts = 1}
"""


async def test_requests(deployment):
    """With the token, sinks are paused, resumed and reloaded, tables are read again and dead letters are replayed."""
    file = deployment.folder / "aiorepl.toml"
    await deployment.connection.execute("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE items")
    await deployment.connection.execute(
        "CREATE SCHEMA other; CREATE TABLE other.items (id int PRIMARY KEY CHECK (id < 100))"
    )
    file.write_text(HTTP + FILE + DEAD_LETTERS + JOURNAL)
    async with deployment.running("--http", "127.0.0.1:0") as process:
        page = Page((await line(process, r"status page: (http://[^ ]*)/"))[1])
        await line(process, "running: sinks")
        for token in (None, "", "wrong", TOKEN + "x"):
            assert (401, {"errors": ["the token is missing or wrong"]}) == await page.post("/reload", token)
        assert 421 == (await page.post("/reload", Origin="https://attacker.example"))[0]
        assert 421 == (await page.post("/reload", Host="attacker.example"))[0]

        assert (200, {"state": "paused"}) == await page.post("/sinks/archive/pause")
        assert "paused" == (await page.sinks())["archive"]
        assert ("1.0", "0.0") == tuple(map((await page.paused()).get, ("archive", "jsonl")))
        await deployment.connection.execute("INSERT INTO items VALUES (1), (200)")
        assert (200, {"state": "running"}) == await page.post("/sinks/archive/resume")
        await deployment.delivers(3, process)
        status, answer = await page.post("/sinks/none/pause")
        assert (409, "there is no sink 'none'; the sinks are archive, jsonl, target") == (
            status,
            answer["errors"][0],
        )

        await until(lambda: list((deployment.folder / "letters").glob("*.json")))
        status, answer = await page.post("/sinks/target/replay")
        assert 409 == status
        assert "is rejected again" in answer["errors"][0]
        assert "running" == (await page.sinks())["target"]
        await deployment.connection.execute("ALTER TABLE other.items DROP CONSTRAINT items_id_check")
        assert (200, {"delivered": 1}) == await page.post("/sinks/target/replay")
        assert not list((deployment.folder / "letters").glob("*.json"))
        found = await deployment.connection.fetch("SELECT id FROM other.items ORDER BY id")
        assert [0, 1, 200] == [row["id"] for row in found]

        assert (200, {"state": "queued"}) == await page.post("/tables/public.items/resnapshot")
        await deployment.delivers(6, process)
        file.write_text(HTTP + FILE + LATE + DEAD_LETTERS + JOURNAL)
        assert (200, {"added": ["late"], "altered": [], "removed": []}) == await page.post("/reload")
        file.write_text(HTTP + FILE + LATE + '[[sinks]]\ntype = "jsonl"\n' + JOURNAL)
        status, answer = await page.post("/reload")
        assert (409, ["aiorepl.toml: sinks[4].path: missing"]) == (status, answer["errors"])
        assert {"journal", "archive", "jsonl", "late", "target"} == set(await page.sinks())
        told = await deployment.stop(process, signal.SIGTERM)
    assert TOKEN not in told


@pytest.mark.parametrize(
    ("http", "address", "match"),
    [
        (HTTP, "0.0.0.0:0", "is no loopback address"),
        ('[http]\ntoken = "short"\n', "127.0.0.1:0", "http.token: must have at least 16"),
        ("[http]\n", "127.0.0.1:0", "http.token: missing"),
    ],
)
async def test_refused_tokens(deployment, http, address, match):
    """A token that clients would send in the clear, or that is easily guessed, is refused."""
    (deployment.folder / "aiorepl.toml").write_text(http + FILE + JOURNAL)
    code, told = await deployment.ended("--http", address)
    assert 2 == code
    assert match in told


async def test_no_token_no_routes(deployment):
    """Without a token, the routes do not exist."""
    (deployment.folder / "aiorepl.toml").write_text(FILE + JOURNAL)
    async with deployment.running("--http", "127.0.0.1:0") as process:
        page = Page((await line(process, r"status page: (http://[^ ]*)/"))[1])
        for path in ("/reload", "/sinks/archive/pause", "/tables/public.items/resnapshot"):
            assert 404 == (await page.post(path))[0]
        await deployment.stop(process, signal.SIGTERM)
