"""Copies database clusters, because initdb takes most of a server's start: one initdb for each version in a run, shared by its processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Final

import pytest

from aiorepl.testing import EmbeddedServer
from aiorepl.testing.server.installation import from_folder, reaches, server_user

# The process that creates the folder `lock` runs initdb, and the others wait for its cluster. After a minute, they run initdb themselves.
INITDB = """\
#!/bin/sh
set -eu
for argument do case $argument in --pgdata=*) data=${{argument#*=}} ;; esac; done
tries=0
until [ -d '{folder}/first' ]; do
    if mkdir '{folder}/lock' 2>/dev/null; then
        '{real}/initdb' "$@"
        cp -r "$data" '{folder}/new'
        mv '{folder}/new' '{folder}/first'
        exit
    fi
    tries=$((tries + 1))
    if [ $tries -gt 600 ]; then exec '{real}/initdb' "$@"; fi
    sleep 0.1
done
cp -r '{folder}/first' "$data"
"""
# The processes of a run share this environment variable, which the first process sets.
VARIABLE = "PYTEST_AIOREPL_RUN"
IS_FIRST = VARIABLE not in os.environ
RUN = os.environ.setdefault(VARIABLE, secrets.token_hex(16))
RUNNING: Final = pytest.StashKey[IO[bytes]]()
"""A file that is locked while the run lasts."""


def copied(version: int, bin_dir: Path, settings: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Return a server that is not started, whose cluster is a copy of the run's first cluster of the version.

    All copies have the same system identifier and the same password.

    :param bin_dir: the real programs.
    """
    server = EmbeddedServer(version, bin_dir=_programs(version, bin_dir), settings=settings)
    server._password = RUN
    return server


def _programs(version: int, real: Path) -> Path:
    """Return a folder with the server's programs, and an ``initdb`` that copies a cluster.

    All servers of a version share the folder. Its programs are links, or copies if the server's user cannot reach the real programs.
    """
    folder = _folder() / str(version)
    # Several processes may do this at once. The rename is atomic, so an existing folder is complete.
    if not folder.is_dir():
        _folder().mkdir(mode=0o755, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=_folder()))
        (new / "bin").mkdir()
        names = [program.name for program in real.iterdir()]
        if not reaches(server_user(), real / "postgres"):
            real = folder / _copy(real, new)
        for name in names:
            if name != "initdb":
                (new / "bin" / name).symlink_to(real / name)
        (new / "bin" / "initdb").write_text(INITDB.format(real=real, folder=folder))
        (new / "bin" / "initdb").chmod(0o755)
        new.chmod(0o777)  # the server's user writes the first cluster
        try:
            new.rename(folder)
        except OSError:
            shutil.rmtree(new)
    return folder / "bin"


def _copy(real: Path, new: Path) -> str:
    """Copy the programs into a folder for the server's user, and return their folder in it."""
    installation = from_folder(real)
    for source, target in installation.every_copy():
        shutil.copytree(source, new / target, symlinks=True, ignore=shutil.ignore_patterns("include"))
    for path in (new / "pg", *(new / "pg").rglob("*")):
        os.chown(path, *(server_user() or (-1, -1)), follow_symlinks=False)
    return installation.copied_bin_dir


def _folder() -> Path:
    return Path(tempfile.gettempdir(), f"aiorepl-clusters-{RUN}")  # the folder is chosen in pytest_configure


@pytest.fixture(scope="session")
def copied_server() -> Callable[..., EmbeddedServer]:
    """``copied_server(version, bin_dir, settings)``: a server, not started, with a copied cluster, for tests with one primary."""
    return copied


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove the clusters of killed runs, which occupy a few hundred MB of memory for each run."""
    if not IS_FIRST:
        return
    running = session.config.stash[RUNNING] = _folder().with_suffix(".running").open("wb")
    fcntl.flock(running, fcntl.LOCK_EX)
    for left in _folder().parent.glob("aiorepl-clusters-*.running"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the other run continues
            shutil.rmtree(left.with_suffix(""), ignore_errors=True)
            left.unlink()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the clusters at the end of the run."""
    if IS_FIRST:
        shutil.rmtree(_folder(), ignore_errors=True)
        _folder().with_suffix(".running").unlink(missing_ok=True)
