"""The process that owns an embedded PostgreSQL server, so that nothing stays behind whatever becomes of its parent.

Run as ``python -I -S guardian.py`` in a session of its own: Ctrl-C in the terminal does not reach it. It makes the
server's folder, is the parent of ``postgres``, and reads commands from standard input, one JSON object a line,
answering each with one on standard output. The end of its input, however it came about, and SIGTERM mean: stop the
server, remove the folder, exit.

Standard library only, and nothing of aiorepl: it must start quickly and be there when the package is half imported.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

INITDB = (
    "--username=postgres",
    "--encoding=UTF8",
    "--locale=C",
    "--auth-local=trust",
    "--auth-host=scram-sha-256",
    "--no-sync",
)
BACKUP = ("--checkpoint=fast", "--no-sync")
INITDB_SECONDS = 180.0
START_SECONDS = 120.0
FAST_SECONDS = 10.0
# Below the range from which systems take the ports of outgoing connections, so that a restart finds its port free.
PORTS = range(20000, 32000)
PORT_TRIES = 8


class Ended(Exception):
    """The parent is gone, or somebody asked us to end."""


class Failed(Exception):
    """A command did not work; its text goes to the parent."""


class Guardian:
    """One folder, at most one running ``postgres``, and the two pipes to the parent."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.bin_dir = Path()
        self.user: Sequence[int] | None = None
        self.ending = self.kept = False
        self._input = bytearray()
        # A signal wakes the select below: no polling for children that ended.
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: what is ignored stays ignored in children.
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    def _pause(self, seconds: float | None) -> None:
        """Wait for a signal, for input, or for the time to pass; :raises Ended: when it is time to go."""
        watched = [self._woken] if self.kept else [self._woken, 0]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
        if 0 in ready:
            data = os.read(0, 65536)
            self._input += data
            self.ending = self.ending or not data
        if self.ending:
            raise Ended

    def _until(self, done: Callable[[], bool], seconds: float, every: float = 60.0) -> bool:
        deadline = time.monotonic() + seconds
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._pause(min(left, every))
        return True

    def commands(self) -> Iterator[dict[str, Any]]:
        """What the parent asks for, until it ends."""
        while True:
            line, found, rest = self._input.partition(b"\n")
            if found:
                self._input = rest
                yield json.loads(line)
            elif self.kept and self.server is not None and self.server.poll() is not None:
                return  # somebody stopped the server that was left running
            else:
                self._pause(None)

    def obey(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Do one command and say how things are now."""
        match command["do"]:
            case "create":
                self.create(command)
                self.start(choose_port=True)
            case "start" if self.server is None or self.server.poll() is not None:
                self.start()
            case "restart":
                self.shutdown(signal.SIGINT)
                self.start()
            case "kill":
                self.shutdown(signal.SIGQUIT)
            case "leave":
                self.kept = True
        pid = None if self.server is None else self.server.pid
        return {"folder": str(self.folder), "port": self.port, "pid": pid, "guardian": os.getpid()}

    def create(self, command: Mapping[str, Any]) -> None:
        """Make the folder, the programs where the server's user cannot reach them, and a database cluster."""
        self.user = command["user"]
        # Mode 0700, for local connections are trusted.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="aiorepl-", dir=command["parent"]))
        for source, target in command["copies"]:
            ignored = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")
            shutil.copytree(source, folder / target, symlinks=True, ignore=ignored)
        self.bin_dir, backup_dir = folder / command["bin_dir"], folder / command["backup_dir"]
        (folder / "log").touch()
        password = folder / "password"
        password.write_text(command["password"])
        self._own(folder)
        place = f"--pgdata={folder / 'data'}"
        if command["primary"] is None:
            self._finish("initdb", *INITDB, place, f"--pwfile={password}")
        else:
            # The database is for the worker that synchronizes slots.
            primary = f"host=127.0.0.1 port={command['primary']} user=postgres dbname=postgres"
            backup = str(backup_dir / "pg_basebackup")
            self._finish(backup, *BACKUP, place, f"--dbname={primary}", PGPASSWORD=command["password"])
            # pg_basebackup would write options that an older server's libpq does not know.
            wanted = folder / "data" / "standby.signal"
            wanted.touch()
            self._own(wanted)
            conninfo = f"{primary} password={command['password']}"
        password.unlink()
        with (folder / "data" / "postgresql.conf").open("a") as file:
            if command["primary"] is not None:
                file.write(f"primary_conninfo = '{conninfo}'\n")
            file.write(command["configuration"])

    def _finish(self, program: str, *options: str, **settings: str) -> None:
        child = self._run(program, *options, **settings)
        try:
            finished = self._until(lambda: child.poll() is not None, INITDB_SECONDS)
        finally:
            if child.poll() is None:  # in a process group of its own, with the postgres that it runs
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if not finished or child.returncode:
            raise Failed(f"{program} failed: {self._log_since(0)}")

    def start(self, *, choose_port: bool = False) -> None:
        """Start ``postgres`` and wait until it accepts connections, recovery after a crash included."""
        assert self.folder is not None
        socket_folder = '"' + str(self.folder).replace('"', '""') + '"'  # a list of folders, by its syntax
        for _ in range(PORT_TRIES if choose_port else 1):
            if choose_port:
                self.port = _free_port()
            before = (self.folder / "log").stat().st_size
            places = ["-D", f"{self.folder}/data", "-k", socket_folder, "-p", str(self.port)]
            self.server = server = self._run("postgres", *places)
            if self._until(self._up_or_gone, START_SECONDS, every=0.01) and server.poll() is None:
                return
            log = self._log_since(before)
            self.shutdown(signal.SIGQUIT)
            if "could not bind" not in log:
                raise Failed(f"the server did not start: {log}")
        raise Failed(f"the server did not start: port {self.port} is taken")

    def shutdown(self, first: signal.Signals) -> None:
        """Stop ``postgres``: as asked, then without its clients' consent, then by force."""
        if self.server is None:
            return
        # A fast shutdown waits for every walsender's client to take all WAL, which a stuck one never does.
        steps = [(signal.SIGINT, FAST_SECONDS), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)]
        for number, seconds in steps[1:] if first == signal.SIGQUIT else steps:
            if self.server.poll() is None:
                self.server.send_signal(number)
            if self._until(lambda: self.server is None or self.server.poll() is not None, seconds):
                break
        self.server = None

    def clean(self) -> None:
        """Leave nothing: neither process nor folder. No signal and no end of input interrupts this."""
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self.ending, self.kept = False, True
        self.shutdown(signal.SIGINT)
        if self.folder is None:
            return
        for _ in range(50):  # a backend of a postmaster that was killed may still write for a moment
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)

    def _own(self, folder: Path) -> None:
        if self.user is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, *self.user, follow_symlinks=False)

    def _run(self, program: str, *options: str, **more: str) -> subprocess.Popen[bytes]:
        assert self.folder is not None
        uid, gid = self.user or (None, None)
        settings = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self.bin_dir / program), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=settings | {"LC_ALL": "C", "TZ": "UTC"} | more,
                user=uid,
                group=gid,
                extra_groups=None if uid is None else [],
                process_group=0,
            )

    def _up_or_gone(self) -> bool:
        """As ``pg_ctl`` finds out. A file says it and nothing else does, so it has to be asked again and again."""
        assert self.folder is not None
        assert self.server is not None
        if self.server.poll() is not None:
            return True
        try:
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.server.pid) and lines[7].strip() == "ready"

    def _log_since(self, offset: int) -> str:
        assert self.folder is not None
        with (self.folder / "log").open("rb") as file:
            file.seek(offset)
            return file.read().decode(errors="replace")[-2000:].strip()


def _free_port() -> int:
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Failed("no free port on 127.0.0.1")


def main() -> None:
    """Serve the parent until it ends."""
    guardian = Guardian()
    try:
        for command in guardian.commands():
            try:
                answer = guardian.obey(command)
            except (Failed, OSError, subprocess.SubprocessError) as error:
                answer = {"error": str(error)}
            os.write(1, json.dumps(answer).encode() + b"\n")
    except (Ended, BrokenPipeError):
        pass
    finally:
        guardian.clean()


if __name__ == "__main__":
    main()
