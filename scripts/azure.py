"""A server with the API of Azure Blob Storage: fetched into ``servers/azure`` of this virtual environment, or run.

    .venv/bin/python scripts/azure.py             fetch Azurite, unless it is there
    .venv/bin/python scripts/azure.py --serve     run it, print its endpoint on a line, stop when the input ends

Best effort, as ``servers.py``: it wants npm and Node.js, and where it cannot be had its tests are skipped. npm's client
fetches what ``scripts/azurite`` has in its lock, hash by hash, and runs nothing of it.
"""

# ruff: noqa: INP001, S603, T201 - a program

from __future__ import annotations

import argparse
import base64
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fetching import CannotBeHad, environment, run_npm
from serving import free_port, running, serve

LOCKED = Path(__file__).with_name("azurite")
FOLDER = Path(sys.prefix, "servers", "azure")
PROGRAM = "node_modules/azurite/dist/src/blob/main.js"
ACCOUNT, KEY = "tests", base64.b64encode(b"test-secret").decode()
SECONDS = 300


def main() -> None:
    """Fetch or serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true")
    environment()
    if parser.parse_args().serve:
        serve(serving())
        return
    try:
        if not complete():
            fetch()
            print(f"azure.py: Azurite is in {FOLDER}", file=sys.stderr)
    except CannotBeHad as reason:
        print(f"azure.py: no Azure Blob Storage for the tests: {reason}", file=sys.stderr)


def complete() -> bool:
    """Whether what is there is what is locked."""
    lock = FOLDER / "package-lock.json"
    return lock.exists() and lock.read_bytes() == (LOCKED / "package-lock.json").read_bytes()


def fetch() -> None:
    """Put it in place, whole or not at all."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise CannotBeHad("npm and Node.js, which would fetch and run it, are not installed")
    FOLDER.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=FOLDER.parent) as temporary:
        folder = Path(temporary)
        for path in LOCKED.iterdir():
            shutil.copy(path, folder)
        arguments = ("ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund")
        done = run_npm(npm, *arguments, folder=folder, seconds=SECONDS)
        if done.returncode != 0:
            raise CannotBeHad("npm ci failed in scripts/azurite; run it to see why")
        said = subprocess.run([node, folder / PROGRAM, "version"], capture_output=True, check=False)
        if said.returncode != 0:
            raise CannotBeHad("it does not run on this Node.js")
        shutil.rmtree(folder / "cache")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        for path in folder.iterdir():
            path.rename(FOLDER / path.name)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """A server until the end of the block; its endpoint, account included."""
    node = shutil.which("node")
    if node is None or not complete():
        sys.exit("azure.py: Azurite is not here: run make servers, which needs npm and Node.js")
    with tempfile.TemporaryDirectory(prefix="azurite-") as temporary:
        port = free_port()
        command = [node, FOLDER / PROGRAM, "--blobPort", str(port), "--location", temporary]
        command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        accounts = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
        endpoint = f"http://127.0.0.1:{port}"
        with running("Azurite", command, endpoint, Path(temporary, "log"), accounts):
            yield f"{endpoint}/{ACCOUNT}"


if __name__ == "__main__":
    main()
