"""Every block of every document is executed, loaded or parsed, on a real server where it needs one."""

from __future__ import annotations

import ast
import asyncio
import base64
import contextlib
import io
import json
import os
import re
import shlex
import signal
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import click
import pytest

import aiorepl
from aiorepl.cli import command, main, mirror_file, pipeline_file
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column
from aiorepl_sinks.s3 import S3Sink
from tests.waiting import DEADLINE

# Slots belong to the whole server, and a document's name is in the document.
pytestmark = pytest.mark.xdist_group("examples")

AIOREPL = Path(sys.executable).with_name("aiorepl")
SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text, email text);
CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(12,2), note text);
CREATE TABLE items (id int PRIMARY KEY, order_id int, product text);
CREATE PUBLICATION shop FOR TABLE customers, orders, items;
"""
NEW_SLOT = """
SELECT pg_create_logical_replication_slot('{0}', 'pgoutput')
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{0}')
"""
# Where documents have their files, and their server.
DSNS = re.compile(r"postgresql://(?:\w+@)?(?:host|localhost)(?::5432)?/\w+")
FOLDERS = ("/var/lib/aiorepl/journal", "/var/lib/aiorepl", "/var/lib/app", "/run/secrets", "/lake")
SOON = aiorepl.BatchPolicy(flush_seconds=0.02)


class Page:
    """One document's blocks, in order: a database, a folder, and what the commands printed."""

    def __init__(self, dsn: str, folder: Path, root: Path, fork_server: Any, value_of: Any) -> None:
        self.dsn, self.folder, self.root = dsn, folder, root
        self.fork_server, self.value_of = fork_server, value_of
        self.names: dict[str, Any] = {}
        self.printed = ""
        self.slot = "documents"
        self.runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        for path in FOLDERS:
            self._here(path).mkdir(parents=True)
        secret = "whsec_" + base64.b64encode(bytes(32)).decode()
        for name in ("webhook", "mask", "encryption", "s3", "redis", "kafka", "nats"):
            (self._here("/run/secrets") / name).write_text(secret)

    def _here(self, path: str) -> Path:
        return self.folder / path.strip("/").replace("/", "_")

    def local(self, text: str) -> str:
        """The text with this server's DSN and this folder's paths."""
        for path in FOLDERS:
            text = text.replace(path, str(self._here(path)))
        text = text.replace("s3://bucket/shop", f"file://{self._here('/lake')}")
        return DSNS.sub(self.dsn, text)

    def sql(self, statements: str) -> Any:
        """Execute SQL, and return the value of the last statement."""

        async def execute() -> Any:
            connection = await asyncpg.connect(self.dsn)
            try:
                return await connection.fetchval(statements)
            except asyncpg.PostgresSyntaxError:  # several statements
                return await connection.execute(statements)
            finally:
                await connection.close()

        return self.runner.run(execute())

    def prepare(self, what: str) -> None:
        """Create the journal, or the lake of the sink ``s3``, that the document reads."""
        stream = Stream()
        orders = stream.table("orders", column("id", 23, key=True), column("note"))
        end = stream.transaction(orders.insert("1", "first"))
        sinks: list[aiorepl.Sink | aiorepl.Delivery] = [MemorySink()]
        journal = None
        if what == "lake":
            lake = S3Sink(f"file://{self._here('/lake')}", files="parquet")
            sinks = [aiorepl.Delivery(lake, batches=SOON)]
        else:
            journal = self._here("/var/lib/aiorepl/journal")
        source = MemorySource(stream=stream)

        async def deliver() -> None:
            async with aiorepl.Pipeline(source, sinks, journal=journal, batches=SOON):
                await source.acknowledged(end)

        self.runner.run(deliver())
        if journal is not None:
            self._execute(["aiorepl", "journal", "compact", str(journal)], None)

    # How a block of each language is tested

    def python(self, block: Any) -> None:
        """Execute it. A block that does not end is stopped once it has confirmed the transactions of ``runs``."""
        if "program" in block.rules:
            (self.folder / "program.py").write_text(self.local(block.text), encoding="utf-8")
            self._execute(["python", "program.py"], block.rules.get("runs"))
            return
        if "continues" not in block.rules:
            self.names = {"__name__": "__main__"}
        self.slot = f"documents_{block.line}"
        if "on" in block.rules:
            self.prepare(block.rules["on"])
        self.names |= {
            name: self.value_of(name, self) for name in re.findall(r"\w+", block.rules.get("given", ""))
        }
        code = compile(
            f"{self.local(block.text)}\n{block.rules.get('then', '')}",
            str(block),
            "exec",
            ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            waiting = eval(code, self.names)
            if "run" in block.rules:  # the tests that it defines
                for name in [name for name in self.names if name.startswith("test_")]:
                    self.runner.run(asyncio.wait_for(self.names[name](), DEADLINE))
            elif waiting is not None:
                self.runner.run(asyncio.wait_for(self._until(waiting, block.rules.get("runs")), DEADLINE))
        self.printed = printed.getvalue()

    async def _until(self, waiting: Any, sql: str | None) -> None:
        if sql is None:
            await waiting
            return
        task = asyncio.ensure_future(waiting)
        confirmed = asyncio.create_task(self._confirmed(sql))
        await asyncio.wait({task, confirmed}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
            raise AssertionError("it has ended by itself")
        await confirmed
        task.cancel()
        await asyncio.wait({task})

    async def _confirmed(self, sql: str, alive: Callable[[], bool] = lambda: True) -> None:
        """Commit changes once the database's slot is active, and return once they are confirmed."""
        connection = await asyncpg.connect(self.dsn)
        slots = "SELECT {} FROM pg_replication_slots WHERE database = current_database() AND active"

        async def wait(query: str, *arguments: object) -> None:
            while not await connection.fetchval(query, *arguments):
                assert alive(), (self.folder / "printed").read_text()
                await asyncio.sleep(0.02)

        try:
            await wait(slots.format("confirmed_flush_lsn IS NOT NULL"))
            await connection.execute(sql)
            end = await connection.fetchval("SELECT pg_current_wal_lsn()::text")
            await wait(slots.format("confirmed_flush_lsn >= $1::text::pg_lsn"), end)
        finally:
            await connection.close()

    def toml(self, block: Any) -> None:
        """Load it as the file that it is a part of."""
        text = self.local(block.text)
        for name in re.findall(r"\$\{(\w+)\}", text):
            os.environ.setdefault(
                name, self.dsn if "DSN" in name or "URL" in name else "whsec_" + "A" * 43 + "="
            )
        if "mirror" in block.rules:
            path = self.folder / "mirror_block.toml"
            path.write_text(text)
            mirror_file.load(path)
            return
        tables = tomllib.loads(text)
        if "source" not in tables:
            text = f'[source]\ndsn = "{self.dsn}"\nslot = "documents"\npublication = "shop"\n{text}'
        if "sinks" not in tables:
            text += '\n[[sinks]]\ntype = "stdout"\n'
        path = self.folder / "block.toml"
        path.write_text(text)
        pipeline_file.load(path)

    def sh(self, block: Any) -> None:
        """Execute or parse each command."""
        text = re.sub(r"\\\n\s*", "", block.text)
        for line in text.splitlines():
            words = shlex.split(os.path.expandvars(self.local(line)), comments=True)
            if words and words[0] == "export":
                name, _, value = words[1].partition("=")
                os.environ[name] = value
            elif words and ("run" in block.rules or "runs" in block.rules):
                self._execute(words, block.rules.get("runs"))
            elif words:
                self._parse(shlex.split(line, comments=True))

    def _execute(self, words: list[str], runs: str | None) -> None:
        target = words.pop() if ">" in words and words.pop(-2) else None
        if words[0] == "psql":
            for number, word in enumerate(words):
                if word == "-c":
                    self.printed = f"{self.sql(words[number + 1])}\n"
        elif words[0] == "aiorepl" and (runs is None or words[1] == "tail"):
            if runs is not None:  # as if it had been running then: without a process of its own
                slot = words[words.index("--slot") + 1]
                words = [*words, "--until", "now"]
                self.sql(NEW_SLOT.format(slot))
                self.sql(runs)
            printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                try:
                    main(words[1:])
                except SystemExit as ended:
                    code = ended.code
            printed.seek(0)
            self.printed = printed.read()
            assert code in (0, 1, 2, 3), self.printed
            assert "internal error" not in self.printed, self.printed
            if target is not None:
                (self.folder / target).write_text(self.printed)
        else:
            program = AIOREPL if words[0] == "aiorepl" else self.folder / words[1]
            arguments = words[1:] if words[0] == "aiorepl" else words[2:]
            log = self.folder / "printed"
            with log.open("wb") as file:
                process = self.fork_server.popen(
                    program,
                    *arguments,
                    env=os.environ | {"PYTHONUNBUFFERED": "1"},
                    cwd=self.folder,
                    stdout=file.fileno(),
                    stderr=file.fileno(),
                )
            try:
                if runs is not None:
                    alive = Path(f"/proc/{process.pid}").exists if sys.platform == "linux" else lambda: True
                    self.runner.run(asyncio.wait_for(self._confirmed(runs, alive), DEADLINE))
                    process.send_signal(signal.SIGINT)
                process.wait(DEADLINE)
            finally:
                if process.returncode is None:
                    process.kill()
                self.printed = log.read_text()
            assert process.returncode in (0, 130, -signal.SIGINT), self.printed

    def _parse(self, words: list[str]) -> None:
        words = [word for word in words if word != ".venv/bin/python"] if ".venv" in words[0] else words
        match words[0]:
            case "aiorepl":
                accept(words[1:])
            case "pip":
                project = tomllib.loads((self.root / "pyproject.toml").read_text())["project"]
                for extras in re.findall(r"(?:aiorepl|\.)\[([\w,]+)\]", " ".join(words)):
                    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
            case "make":
                assert re.search(rf"^{words[1]}:", (self.root / "Makefile").read_text(), re.MULTILINE), words
            case _:
                program = next((word for word in words if word.endswith(".py")), None)
                assert program is not None, f"no rule for {words[0]}"
                assert (self.root / program).is_file(), program

    def output(self, block: Any) -> None:
        """Compare with the output of the command before: each line, in order; … stands for any text.

        A block of JSON has events, laid out for readers: their fields, in order, and all values are compared, except for positions,
        times and xids.
        """
        lines, form = block.text.splitlines(), normal
        if block.language == "json":
            lines, form = events(block.text), normal_event
        printed = [form(line) for line in self.printed.splitlines()]
        at = 0
        for line in filter(str.strip, lines):
            pattern = re.escape(form(line)).replace("…", ".*")
            found = next((n for n in range(at, len(printed)) if re.fullmatch(pattern, printed[n])), None)
            assert found is not None, f"{block}: {line!r} is not in\n{self.printed}"
            at = found + 1


def normal(line: str) -> str:
    """Remove the parts of a line that differ between runs: positions, times, numbers of more than one digit, widths."""
    line = re.sub(r"\b[0-9A-F]{1,8}/[0-9A-F]{1,8}\b(-\d+)?", "LSN", line)
    line = re.sub(r"\d\d\d\d-\d\d-\d\d[T ]?|\d\d:\d\d:\d\d(\.\d+)?Z?", "TIME", line)
    line = re.sub(r"(TIME ?)+", "TIME", line)
    line = re.sub(r"\d[\d,.]*\d", "N", line)
    return re.sub(r"[ ─━]{2,}", " ", line).strip()


def events(text: str) -> list[str]:
    """The JSON objects of a text, each without the spaces and line ends around its tokens."""
    compact, at, found = re.sub(r'("(?:[^"\\]|\\.)*")|\s+', lambda part: part[1] or "", text), 0, []
    while at < len(compact):
        _, end = json.JSONDecoder().raw_decode(compact, at)
        found.append(compact[at:end])
        at = end
    return found


def normal_event(line: str) -> str:
    """Remove the values of an event that differ between runs: positions, times and xids."""
    line = re.sub(r'(lsn":)"[0-9A-F]+/[0-9A-F]+"', r"\1LSN", line)
    line = re.sub(r'(_time":)"[-+\d]+T[\d:.]+Z"', r"\1TIME", line)
    return re.sub(r'("xid":)[1-9]\d*', r"\1XID", line)


def accept(arguments: list[str]) -> None:
    """The command line has this command, with its arguments and options."""
    group: click.Command = command
    while isinstance(group, click.Group) and arguments:
        if arguments[0].startswith("-"):
            arguments = arguments[2:] if arguments[0] == "--log-format" else arguments[1:]
            continue
        group = group.commands[arguments[0]]
        arguments = arguments[1:]
    if ">" in arguments:
        arguments = arguments[: arguments.index(">")]
    if arguments:
        for parameter in group.params:
            if isinstance(parameter.type, click.Path):
                parameter.type.exists = False
        group.make_context("aiorepl", arguments)


def test_every_page(blocks, request, tmp_path, monkeypatch, root, fork_server, value_of):
    """The blocks of a page, in order."""
    text = (root / blocks[0].page).read_text(encoding="utf-8")
    server = any(rule in block.rules for block in blocks for rule in ("given", "run", "runs")) or any(
        block.language == "sql" and not {"elsewhere", "shown:"} & block.rules.keys() for block in blocks
    )
    dsn = request.getfixturevalue("database") if server else "postgresql://nowhere/none"
    monkeypatch.chdir(tmp_path)
    for name in ("DSN", "DATABASE_URL", "AIOREPL_DSN", "AUDIT_URL", "MIRROR_URL"):
        monkeypatch.setenv(name, dsn)
    before = dict(os.environ)
    page = Page(dsn, tmp_path, root, fork_server, value_of)
    if server and "<!-- page: empty database -->" not in text:
        page.sql(SHOP)
    try:
        for block in blocks:
            started = time.perf_counter()
            check(page, block)
            took = time.perf_counter() - started
            if took > 0.5:
                print(f"{block}: {took:.1f} s")
    finally:
        page.runner.close()
        for name in os.environ.keys() - before.keys():
            monkeypatch.delenv(name)


def check(page: Page, block: Any) -> None:
    """Test a block as its rule says."""
    rules = block.rules
    if "shown:" in rules:
        assert rules["shown:"], f"{block}: no reason"
    elif "elsewhere" in rules:
        path = page.root / rules["elsewhere"]
        assert path.is_file(), f"{block}: {path} does not exist"
        assert Path(block.page).name in path.read_text(encoding="utf-8"), f"{path} does not name {block.page}"
    elif "quoted" in rules:
        text, quoted = (
            re.sub("\n +", "\n", part) for part in ((page.root / rules["quoted"]).read_text(), block.text)
        )
        assert quoted.strip() in text, f"{block}: not in {rules['quoted']}"
    elif "output" in rules:
        page.output(block)
    else:
        match block.language:
            case "python" if "file" not in rules:
                page.python(block)
            case "python":
                compile(block.text, str(block), "exec", dont_inherit=True)
            case "toml":
                page.toml(block)
            case "sql":
                run_sql(page, block)
            case "json":
                json.loads(block.text)
            case "sh" | "shell" | "bash":
                page.sh(block)
            case language:
                raise AssertionError(f"{block}: no rule for {language}")
    if "file" in rules:
        (page.folder / rules["file"]).write_text(page.local(block.text), encoding="utf-8")


def run_sql(page: Page, block: Any) -> None:
    """Execute; keep what it does with ``run``."""
    text = page.local(block.text)
    page.sql(text if "run" in block.rules else f"BEGIN;{text};ROLLBACK")
