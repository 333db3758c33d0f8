"""PostgreSQL 19 and PgBouncer for the tests, from Debian's packages, on any Debian on x86-64: ``servers/19/bin``, ``servers/pgbouncer``.

The packages are of a later Debian than this machine's, so they come with their own libraries, and nothing is installed: apt-get fetches them
with lists of its own, checks their signatures, and dpkg unpacks them. patchelf, which is one of them, tells each program where its libraries
are. Best effort, as ``servers.py``.
"""

# ruff: noqa: INP001, S603, T201 - a program

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fetching import CannotBeHad, environment

VERSION = 19
SUITES = ("sid", "experimental")
PROGRAMS = (f"postgresql-{VERSION}", f"postgresql-client-{VERSION}", "pgbouncer", "patchelf")
LIBRARIES = [
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "libaudit1",
    "libcap2",
    "libcap-ng0",
    "libcares2",
    "libcom-err2",
    "libevent-2.1-7t64",
    "libgssapi-krb5-2",
    "libicu78",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libldap2",
    "liblz4-1",
    "liblzma5",
    "libnuma1",
    "libpam0g",
    "libpcre2-8-0",
    "libpq5",
    "libsasl2-2",
    "libselinux1",
    "libssl3t64",
    "libsystemd0",
    "liburing2",
    "libuuid1",
    "libxml2-16",
    "libxslt1.1",
    "libzstd1",
    "zlib1g",
]
LIBRARY_FOLDER = Path("usr/lib/x86_64-linux-gnu")
LOADER = Path("usr/lib64/ld-linux-x86-64.so.2")
SERVER_FOLDER = Path(f"usr/lib/postgresql/{VERSION}")
SECONDS = 300


def main() -> None:
    """Fetch what is missing."""
    servers = environment() / "servers"
    if (servers / str(VERSION)).exists() and (servers / "pgbouncer").exists():
        return
    try:
        fetch(servers)
    except CannotBeHad as reason:
        print(f"debian.py: no PostgreSQL {VERSION} and no PgBouncer for the tests: {reason}", file=sys.stderr)


def fetch(servers: Path) -> None:
    """Put both in place, whole or not at all."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or shutil.which("apt-get") is None:
        raise CannotBeHad("the packages are for Debian on x86-64")
    servers.mkdir(exist_ok=True)
    # Its own name at once, because programs have the path of their libraries.
    root = Path(tempfile.mkdtemp(prefix="debian-", dir=servers))
    try:
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=servers) as temporary:
            folder = Path(temporary)
            # apt-get drops root's privileges, and must enter the folder.
            for path in (root, folder):
                path.chmod(0o755)
            download(folder)
            for package in folder.glob("*.deb"):
                run("dpkg", "-x", package, root)
        relocate(root)
        said = run(root / SERVER_FOLDER / "bin" / "postgres", "--version")
        said += run(root / "usr" / "sbin" / "pgbouncer", "--version")
        for name, target in ((str(VERSION), root / SERVER_FOLDER), ("pgbouncer", root / "usr" / "sbin")):
            (servers / name).unlink(missing_ok=True)
            (servers / name).symlink_to(target.relative_to(servers))
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    print(f"debian.py: {', '.join(said.splitlines()[:2])} are in {root}", file=sys.stderr)


def download(folder: Path) -> None:
    """Fetch the packages into a folder, from the mirror that this machine uses."""
    (folder / "state" / "lists" / "partial").mkdir(parents=True)
    (folder / "cache" / "archives" / "partial").mkdir(parents=True)
    mirror = find_mirror()
    (folder / "sources.list").write_text("".join(f"deb {mirror} {suite} main\n" for suite in SUITES))
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": folder / "state",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    apt = ["apt-get", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    run(*apt, "update", folder=folder)
    run(*apt, "download", *PROGRAMS, *LIBRARIES, folder=folder)


def find_mirror() -> str:
    """Return the URL of the Debian mirror in this machine's sources."""
    etc = Path("/etc/apt")
    files = [etc / "sources.list", *(etc / "sources.list.d").glob("*")]
    text = "\n".join(path.read_text(errors="replace") for path in files if path.is_file())
    found = re.search(r"^(?:URIs:|deb\b).*?(https?://\S+/debian/?)(?:\s|$)", text, re.MULTILINE)
    if found is None:
        raise CannotBeHad("this machine's package sources name no mirror of Debian")
    return found[1]


def relocate(root: Path) -> None:
    """Point the programs and the server's modules at the libraries beside them."""
    libraries, loader = root / LIBRARY_FOLDER, root / LOADER
    patchelf = [loader, "--library-path", libraries, root / "usr" / "bin" / "patchelf"]
    programs = [*(root / SERVER_FOLDER / "bin").iterdir(), root / "usr" / "sbin" / "pgbouncer"]
    for program in programs:
        if program.read_bytes()[:4] == b"\x7fELF":
            run(*patchelf, "--force-rpath", "--set-interpreter", loader, "--set-rpath", libraries, program)
    for module in (root / SERVER_FOLDER / "lib").glob("*.so"):
        run(*patchelf, "--set-rpath", libraries, module)


def run(*command: object, folder: Path | None = None) -> str:
    """Run a program and return what it prints."""
    try:
        done = subprocess.run(
            [*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBeHad(f"{Path(str(command[0])).name}: {type(error).__name__}") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise CannotBeHad(f"{Path(str(command[0])).name} failed: {lines[-1] if lines else done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
