"""Whether the version is the same everywhere: ``version.py [TAG]``.

In pyproject.toml, in CITATION.cff, in a dated section of CHANGELOG.md, and in the tag: ``TAG``, or the tags of HEAD that begin with v
and a digit. HEAD may have none yet. Imports the standard library alone.
"""

# ruff: noqa: INP001, S607, T201 - a program

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(root: Path, tags: list[str]) -> list[str]:
    """Return what has another version than pyproject.toml."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    found = [f"the tag is {tag}, not v{version}" for tag in tags if tag != f"v{version}"]
    cited = re.search(r"^version: *(\S+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    if cited is None or cited[1].strip("\"'") != version:
        found.append(f"CITATION.cff: the version is not {version}")
    heading = rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d$"
    if re.search(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE) is None:
        found.append(f"CHANGELOG.md: there is no section '## {version} - YYYY-MM-DD'")
    return found


def main() -> int:
    """Print what differs. Returns the exit code."""
    tags = sys.argv[1:]
    if not tags:
        listed = subprocess.run(
            ["git", "tag", "--points-at", "HEAD", "--list", "v[0-9]*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        tags = listed.stdout.split()
    found = problems(ROOT, tags)
    for problem in found:
        print(f"version.py: {problem}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
