"""PgBouncer in front of a test's server."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

SECONDS = 60.0
# Settings that the startup packet of some drivers has, and that many installations therefore ignore.
IGNORED = "extra_float_digits,IntervalStyle,bytea_output,search_path,lc_monetary,options"


def program() -> Path:
    """PgBouncer 1.23 or later, which passes replication; skips where there is none."""
    fetched = Path(sys.prefix, "servers", "pgbouncer", "pgbouncer")
    for found in (fetched, Path(shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin") or "")):
        if found.is_file():
            said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
            if tuple(map(int, said.split()[1].split(".")[:2])) >= (1, 23):
                return found
    pytest.skip("no PgBouncer 1.23 here: run make servers, or apt-get install pgbouncer (Debian 13)")


@contextlib.contextmanager
def pgbouncer(dsn: str, **settings: str) -> Iterator[str]:
    """Run PgBouncer, and yield the DSN that goes through it. Skips where there is none.

    :param dsn: of the server, with a password.
    :param settings: of pgbouncer.ini, such as ``pool_mode``.
    """
    run = program()
    server = urlsplit(dsn)
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as temporary:
        folder, port = Path(temporary), free_port()
        (folder / "users").write_text(f'"{server.username}" "{server.password}"\n')
        written = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": str(folder / "users"),
            "logfile": str(folder / "log"),
            **settings,
        }
        lines = [f"{name} = {value}\n" for name, value in written.items()]
        (folder / "ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\n{''.join(lines)}"
        )
        user = own(folder)
        process = subprocess.Popen([run, *user, folder / "ini"], stdout=-3, stderr=-3)
        try:
            wait_for(port, process, folder / "log")
            place = f"{server.username}:{server.password}@127.0.0.1:{port}"
            yield urlunsplit(server._replace(netloc=place))
        finally:
            process.kill()
            process.wait()


def own(folder: Path) -> list[str]:
    """Give the folder to a user that PgBouncer, which does not run as root, can run as."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    for path in (folder, *folder.iterdir()):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    return ["-u", "nobody"]


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it accepts connections."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)
    pytest.fail(f"PgBouncer did not start: {log.read_text() if log.exists() else process.returncode}")


def free_port() -> int:
    """A port that is free now, below those for outgoing connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
