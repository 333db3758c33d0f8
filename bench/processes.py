"""Runs a program and measures it with all processes that it starts: time, CPU and memory."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import ENVIRONMENT, tree_cpu

_SECONDS = 0.2


@dataclass(frozen=True)
class Measured:
    """The measurements of a program that has ended.

    :param cpu: seconds of CPU of all its processes.
    :param memory: the peak of proportional set sizes, so that shared pages count once: of Java, of Python, which is the first
        process, and of its workers, all at a time.
    """

    wall: float
    cpu: float
    memory: Mapping[str, int]
    output: str

    def __str__(self) -> str:
        memory = ", ".join(f"{kind} {size >> 20:,} MiB" for kind, size in self.memory.items())
        return f"{self.wall:.1f} s, {self.cpu:.1f} s of CPU, peak memory: {memory}"

    def rates(self, rows: int) -> str:
        """Describe the measurements for this number of rows."""
        return f"{rows:,} rows, {rows / self.wall:,.0f} rows/s, {self.cpu / rows * 1e6:.1f} CPU seconds per million; {self}"


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    pause: Callable[[], None] | None = None,
) -> Measured:
    """Run a program to its end. Its standard error goes to the standard error of this process.

    :param pause: called after the first line of the program's output; its time is not counted. Then the program's input ends.
    """
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT | dict(environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    watch = _Watch(process.pid)
    watch.start()
    first, paused = "", 0.0
    if pause is not None:
        first, stopped = process.stdout.readline(), time.monotonic()
        if first:
            pause()
        paused = time.monotonic() - stopped
    output = first + process.communicate()[0]
    wall = time.monotonic() - began - paused
    watch.ended.set()
    watch.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} … ended with {process.returncode}\n{output[-3000:]}")
    return Measured(wall, watch.cpu, watch.memory, output)


def step(*arguments: object) -> list[str]:
    """Return the command of a step of ``spark_steps.py``."""
    return [sys.executable, str(Path(__file__).with_name("spark_steps.py")), *map(str, arguments)]


def descendants(root: int) -> set[int]:
    """Return the processes that a process has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return found


class _Watch(threading.Thread):
    """Looks at a process and its descendants every fifth of a second."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.cpu = 0.0
        self.memory: dict[str, int] = {}
        self._root = root

    def run(self) -> None:
        while not self.ended.wait(_SECONDS):
            # Java is killed at the end, and its CPU does not become its parent's.
            self.cpu = max(self.cpu, tree_cpu(self._root))
            now: dict[str, int] = {}
            for pid in (self._root, *descendants(self._root)):
                try:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                except OSError:
                    continue
                kind = "Java" if name == "java" else "Python" if pid == self._root else "workers"
                pss = next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)
                now[kind] = now.get(kind, 0) + pss
            for kind, size in now.items():
                self.memory[kind] = max(self.memory.get(kind, 0), size)
