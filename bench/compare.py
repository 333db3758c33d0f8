"""``make bench-compare A=COMMIT B=COMMIT``: measures two commits alternately, and shows which differences exceed the noise.

    .venv/bin/python bench/compare.py A B [--rounds N] [options of bench/suite.py, such as --only WORD]

Each commit is checked out into a temporary folder and compiled there. In each round, the suite of *this* tree measures both
commits, in alternating order. A difference exceeds the noise if it has the same sign in every round. Both commits run with the
packages of this environment.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from comparison import ROUNDS, differences, table
from measuring import machine

HERE: Final = Path(__file__).resolve().parent
CONTESTANTS: Final = "null,typed,tail,jsonl,journal"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", help="a commit, branch or tag")
    parser.add_argument("b", help="a commit, branch or tag to compare with A")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"rounds for each commit (default: {ROUNDS})"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("bench-comparison.json"), help="the file for all results"
    )
    arguments, suite_options = parser.parse_known_args()
    if arguments.rounds < 2:
        parser.error("one round shows no noise: use at least 2")
    results: dict[str, list[Any]] = {"a": [], "b": []}
    with tempfile.TemporaryDirectory(prefix="aiorepl-compare-") as scratch:
        trees = {}
        try:
            for side in ("a", "b"):
                trees[side] = check_out(getattr(arguments, side), Path(scratch, side))
            for number in range(arguments.rounds):
                for side in ("a", "b") if number % 2 == 0 else ("b", "a"):
                    began = time.monotonic()
                    results[side].append(measure(trees[side], suite_options))
                    print(f"round {number + 1}, {side}: {time.monotonic() - began:.0f} s", flush=True)
        finally:
            for tree in trees.values():
                git("worktree", "remove", "--force", str(tree))
    commits = {side: git("rev-parse", getattr(arguments, side)) for side in ("a", "b")}
    arguments.json.write_text(
        json.dumps({"machine": machine(), "commits": commits} | results, indent=2) + "\n"
    )
    print(f"\n{machine()}\nA is {commits['a']}, B is {commits['b']}; {arguments.rounds} rounds\n")
    print(table(list(differences(results["a"], results["b"]))))


def check_out(commit: str, folder: Path) -> Path:
    """Check out a commit, and compile it in its folder."""
    git("worktree", "add", "--quiet", "--detach", str(folder), commit)
    subprocess.run([sys.executable, "hatch_build.py"], cwd=folder, check=True)
    return folder


def measure(tree: Path, suite_options: list[str]) -> Any:
    """Run the suite once with the code of a tree, and return the results."""
    path = os.pathsep.join((str(tree), str(tree / "sinks")))
    with tempfile.TemporaryDirectory(prefix="aiorepl-compare-") as folder:
        found = Path(folder, "results.json")
        command = [sys.executable, str(HERE / "suite.py"), "--rounds", "1", "--json", str(found), "--quick"]
        done = subprocess.run(
            [*command, "--contestants", CONTESTANTS, *suite_options],
            env={**os.environ, "PYTHONPATH": path},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{tree.name}: the suite ended with {done.returncode}: {done.stderr[-2000:]}")
        results = json.loads(found.read_text())
    if not results["machine"]["compiled"]:
        raise SystemExit(f"{tree.name}: nothing is compiled: is there a C compiler?")
    return results


def git(*arguments: str) -> str:
    """Run git in this repository, and return its output."""
    done = subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
