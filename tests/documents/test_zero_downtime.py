"""docs/how-to/zero-downtime.md, page to page: every command of the page, in order, while an application writes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.waiting import DEADLINE

PAGE = "docs/how-to/zero-downtime.md"
SHOP = """
CREATE ROLE shop_app LOGIN PASSWORD 'app';
CREATE TABLE customers (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, since timestamptz DEFAULT now());
CREATE TABLE orders (id bigserial PRIMARY KEY, customer int REFERENCES customers, total numeric(12,2), note text);
CREATE TABLE audit (what text, at timestamptz DEFAULT clock_timestamp());
CREATE UNLOGGED TABLE sessions (id int);
CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.audit (what) VALUES (TG_OP); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION noted();
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO shop_app;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO shop_app;
INSERT INTO customers (name) SELECT 'c' || i FROM generate_series(1, 500) i;
INSERT INTO orders (customer, total, note) SELECT i, i, repeat('x', i * 10) FROM generate_series(1, 500) i;
"""
WORK = (
    "INSERT INTO customers (name) VALUES ('new')",
    "INSERT INTO orders (customer, total) SELECT max(id), 1 FROM customers",
    "UPDATE orders SET total = total + 1 WHERE id % 50 = 1",
    "DELETE FROM orders WHERE id = (SELECT min(id) FROM orders)",
    "DELETE FROM audit WHERE ctid = (SELECT min(ctid::text)::tid FROM audit)",
)
TOTALS = (
    "SELECT (SELECT count(*) FROM customers), (SELECT sum(total) FROM orders), (SELECT count(*) FROM audit)"
)


class Migration:
    """The two servers, the commands of the page, the pipelines that run, and the application."""

    def __init__(self, old: Any, new: Any, folder: Path) -> None:
        self.old, self.new, self.folder = old.dsn_for("shop"), new.dsn_for("shop"), folder
        self.programs = new.bin_dir
        self.pipelines: dict[str, subprocess.Popen[bytes]] = {}
        self.printed: list[str] = []
        self.committed = 0

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder}:{self.programs}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "AIOREPL"))}
        return kept | {"PATH": path, "OLD_URL": self.old, "NEW_URL": self.new}

    def run(self, commands: str) -> None:
        """Run a block of commands in a shell that stops at the first error; start pipelines beside it."""
        for line in commands.splitlines():
            if found := re.match(r"aiorepl run (\S+)", line):
                with (self.folder / f"{found[1]}.log").open("wb") as log:
                    self.pipelines[found[1]] = subprocess.Popen(
                        [sys.executable, "-m", "aiorepl", "run", found[1]],
                        cwd=self.folder,
                        env=self.environment,
                        stdout=log,
                        stderr=log,
                    )
            elif not line.startswith("export "):
                done = subprocess.run(
                    ["bash", "-o", "pipefail", "-ec", line],
                    cwd=self.folder,
                    env=self.environment,
                    capture_output=True,
                    text=True,
                    timeout=DEADLINE,
                    check=False,
                )
                logs = "".join(each.read_text() for each in self.folder.glob("*.log"))
                assert 0 == done.returncode, (line, done.stdout, done.stderr, logs)
                self.printed.append(done.stdout)

    def stop(self, name: str) -> None:
        """Stop a pipeline as Ctrl-C does."""
        process = self.pipelines.pop(name)
        process.send_signal(signal.SIGINT)
        assert 0 == process.wait(DEADLINE), (self.folder / f"{name}.log").read_text()

    async def write(self, url: str) -> None:
        """Write as the application, in transactions, until its session is ended."""
        connection = await asyncpg.connect(url, user="shop_app", password="app")
        try:
            while True:
                async with connection.transaction():
                    for statement in WORK:
                        await connection.execute(statement)
                self.committed += 1
                await asyncio.sleep(0.05)  # the pace of the application
        finally:
            connection.terminate()

    async def totals(self, url: str) -> tuple[Any, ...]:
        connection = await asyncpg.connect(url)
        try:
            return tuple(await connection.fetchrow(TOTALS))
        finally:
            await connection.close()


def blocks(page: str) -> dict[str, list[tuple[str, str]]]:
    """The blocks of the page by the numbers of its steps: language and text. Step 6 is several."""
    found: dict[str, list[tuple[str, str]]] = {"0": []}
    step = "0"
    for number, language, text in re.findall(
        r"^(?:## |\*\*)(\d(?:\.\d)?)\.|^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL
    ):
        if number:
            step = number
            found[step] = []
        else:
            found[step].append((language, text))
    return found


@pytest.fixture
def shop(servers, tmp_path):
    """Two servers of their own, because roles belong to a whole server."""
    started, migrations = [], []

    def make(old: int, new: int) -> Migration:
        for version in (old, new):
            server = servers.new(version)
            server.start()
            started.append(server)
        migration = Migration(*started, tmp_path)
        migrations.append(migration)
        return migration

    yield make
    for migration in migrations:
        for process in migration.pipelines.values():
            process.kill()
            process.wait()
    for server in started:
        server.stop()


@pytest.mark.by_day
@pytest.mark.server
@pytest.mark.parametrize("versions", [(13, 18), (16, 19)])
async def test_the_page(shop, root, versions):
    """There and back: no committed change is lost, sequences go on, and each server is what the other one was."""
    migration = shop(*versions)
    if not (migration.programs / "pg_dumpall").is_file():
        pytest.skip("no pg_dump of this version")
    for url in (migration.old, migration.new):
        connection = await asyncpg.connect(url.replace("/shop", "/postgres"))
        await connection.execute("CREATE DATABASE shop")
        await connection.close()
    connection = await asyncpg.connect(migration.old)
    await connection.execute(SHOP)
    await connection.close()
    steps = blocks((root / PAGE).read_text(encoding="utf-8"))
    assert ["0", "1", "2", "3", "4", "5", "6", "6.1", "6.2", "6.3", "6.4", "6.5", "7", "8"] == list(steps)
    (migration.folder / "aiorepl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aiorepl "$@"\n')
    (migration.folder / "aiorepl").chmod(0o755)

    async def follow(*numbers: str) -> None:
        for number in numbers:
            for language, text in steps[number]:
                if language == "toml":
                    name = text.splitlines()[0].removeprefix("# ")
                    (migration.folder / name).write_text(
                        text.replace("/var/lib/aiorepl", str(migration.folder))
                    )
                else:
                    await asyncio.to_thread(migration.run, text)

    async def until_ended(writing: asyncio.Task[None]) -> None:
        with pytest.raises(
            (
                asyncpg.AdminShutdownError,
                asyncpg.ConnectionDoesNotExistError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,  # the connection was closed between two statements
                OSError,
            )
        ):
            await asyncio.wait_for(writing, DEADLINE)

    await follow("0", "1", "2", "3")
    assert "sessions" in "".join(migration.printed)
    writing = asyncio.create_task(migration.write(migration.old))
    await follow("4", "5")
    assert not writing.done(), writing
    await follow("6.1")
    await until_ended(writing)
    assert migration.committed > 0
    await follow("6.2", "6.3")
    assert await migration.totals(migration.old) == await migration.totals(migration.new)
    migration.stop("migration.toml")
    await follow("6.4")
    before = migration.committed
    writing = asyncio.create_task(migration.write(migration.new))
    await follow("6.5")
    while migration.committed < before + 5:
        assert not writing.done(), writing
        await asyncio.sleep(0.02)

    await follow("7")
    await until_ended(writing)
    totals = await migration.totals(migration.new)
    assert totals == await migration.totals(migration.old)
    assert 500 + migration.committed <= totals[0] <= 501 + migration.committed
    migration.stop("rollback.toml")
    await follow("8")
    connection = await asyncpg.connect(migration.old, user="shop_app", password="app")
    try:
        for statement in WORK:
            await connection.execute(statement)
    finally:
        await connection.close()
