"""Print line and branch coverage for each folder, from the data that ``coverage run`` has left."""

# ruff: noqa: INP001, S603, T201 - a program

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]


def measured() -> dict[str, Counter[str]]:
    """The sums of each folder's files, by their path below the project."""
    command = [sys.executable, "-m", "coverage", "json", "--quiet", "-o", "-"]
    report = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    folders: dict[str, Counter[str]] = {}
    for name, file in report["files"].items():
        parent = PurePosixPath(Path(name)).parent
        numbers = {key: value for key, value in file["summary"].items() if isinstance(value, int)}
        folders.setdefault("/".join(parent.parts[:2]), Counter()).update(numbers)
    return folders


def share(covered: int, of: int) -> str:
    """A percentage."""
    return f"{100 * covered / of:6.1f} %" if of else "       -"


def main() -> None:
    """Print a line for each folder, and one for all."""
    folders = measured()
    folders["all"] = sum(folders.values(), Counter())
    print(f"{'':32}{'lines':>14}{'':9}{'branches':>11}")
    for name, numbers in sorted(folders.items(), key=lambda item: (item[0] == "all", item[0])):
        lines = share(numbers["covered_lines"], numbers["num_statements"])
        branches = share(numbers["covered_branches"], numbers["num_branches"])
        print(f"{name:32}{lines} of {numbers['num_statements']:5}  {branches} of {numbers['num_branches']:5}")


if __name__ == "__main__":
    main()
