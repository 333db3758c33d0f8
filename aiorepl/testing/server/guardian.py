"""The process that owns a temporary PostgreSQL server, and removes it even if its parent is killed.

Run as ``python -I -S guardian.py`` in its own session, where Ctrl-C in the terminal does not reach it. It creates the server's
folder, is the parent of ``postgres``, and reads commands from standard input, one JSON object per line; it answers each with one
on standard output. At the end of its input, or at SIGTERM, it stops the server, removes the folder and exits.

Imports only the standard library, to start quickly and independently of aiorepl.
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
FAST_SHUTDOWN_SECONDS = 10.0
# Below the range of ports for outgoing connections, so that the port is still free at a restart.
PORTS = range(20000, 32000)
PORT_TRIES = 8


class Ended(Exception):
    """The parent has ended, or a signal arrived."""


class Failed(Exception):
    """A command failed; the text goes to the parent."""


class Guardian:
    """Owns the folder, at most one running ``postgres``, and the pipes to the parent."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.server: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.bin_dir = Path()
        self.user: Sequence[int] | None = None
        self.ending = self.kept = False
        self._input = bytearray()
        # Signals, SIGCHLD too, wake the select in _pause.
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # A handler, because children would inherit SIG_IGN.
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._end)

    def _end(self, *_: object) -> None:
        self.ending = True

    def _pause(self, seconds: float | None) -> None:
        """Wait for a signal, for input or for a timeout.

        :raises Ended: the guardian has to stop.
        """
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
        """Yield the parent's commands, until it ends."""
        while True:
            line, found, rest = self._input.partition(b"\n")
            if found:
                self._input = rest
                yield json.loads(line)
            elif self.kept and self.server is not None and self.server.poll() is not None:
                return  # the server that was left running has been stopped
            else:
                self._pause(None)

    def execute(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Execute a command, and return the state afterwards."""
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
        """Create the folder and a database cluster; copy the programs if the server's user cannot reach them."""
        self.user = command["user"]
        # mkdtemp sets mode 0700, which matters because local connections are trusted.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="aiorepl-", dir=command["parent"]))
        for source, target in command["copies"]:
            ignored = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "*.a")
            shutil.copytree(source, folder / target, symlinks=True, ignore=ignored)
        self.bin_dir, backup_dir = folder / command["bin_dir"], folder / command["backup_dir"]
        (folder / "log").touch()
        password = folder / "password"
        password.write_text(command["stored_password"])
        self._own(folder)
        data = f"--pgdata={folder / 'data'}"
        if command["primary"] is None:
            self._finish("initdb", *INITDB, data, f"--pwfile={password}")
        else:
            # The worker that synchronizes slots needs dbname.
            primary = f"host=127.0.0.1 port={command['primary']} user=postgres dbname=postgres"
            backup = str(backup_dir / "pg_basebackup")
            self._finish(backup, *BACKUP, data, f"--dbname={primary}", PGPASSWORD=command["password"])
            # Written here, because pg_basebackup -R writes options that an older libpq does not know.
            standby = folder / "data" / "standby.signal"
            standby.touch()
            self._own(standby)
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
            if child.poll() is None:  # its process group includes the postgres that it runs
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if not finished or child.returncode:
            raise Failed(f"{program} failed: {self._log_since(0)}")

    def start(self, *, choose_port: bool = False) -> None:
        """Start ``postgres``, and wait until it accepts connections; after a crash it recovers first."""
        assert self.folder is not None
        socket_folder = (
            '"' + str(self.folder).replace('"', '""') + '"'
        )  # the setting is a list, so quote the folder
        for _ in range(PORT_TRIES if choose_port else 1):
            if choose_port:
                self.port = _free_port()
            before = (self.folder / "log").stat().st_size
            options = ["-D", f"{self.folder}/data", "-k", socket_folder, "-p", str(self.port)]
            self.server = server = self._run("postgres", *options)
            if self._until(self._ready_or_ended, START_SECONDS, every=0.01) and server.poll() is None:
                return
            log = self._log_since(before)
            self.shutdown(signal.SIGQUIT)
            if "could not bind" not in log:
                raise Failed(f"the server did not start: {log}")
        raise Failed(f"the server did not start: port {self.port} is taken")

    def shutdown(self, first: signal.Signals) -> None:
        """Stop ``postgres``: with the given signal, then immediately, then by SIGKILL."""
        if self.server is None:
            return
        # A fast shutdown waits until every walsender's client has received all WAL; a stuck client never does.
        steps = [(signal.SIGINT, FAST_SHUTDOWN_SECONDS), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)]
        for number, seconds in steps[1:] if first == signal.SIGQUIT else steps:
            if self.server.poll() is None:
                self.server.send_signal(number)
            if self._until(lambda: self.server is None or self.server.poll() is not None, seconds):
                break
        self.server = None

    def clean(self) -> None:
        """Stop the server and remove the folder. Neither signals nor the end of input interrupt this."""
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

    def _ready_or_ended(self) -> bool:
        """Check postmaster.pid, as ``pg_ctl`` does; there is no event to wait for."""
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
    """Execute the parent's commands until it ends."""
    guardian = Guardian()
    try:
        for command in guardian.commands():
            try:
                answer = guardian.execute(command)
            except (Failed, OSError, subprocess.SubprocessError) as error:
                answer = {"error": str(error)}
            os.write(1, json.dumps(answer).encode() + b"\n")
    except (Ended, BrokenPipeError):
        pass
    finally:
        guardian.clean()


if __name__ == "__main__":
    main()
