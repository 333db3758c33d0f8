"""A server that tests of sinks kill and start again."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ServerProcess(ABC):
    """A server whose data outlives its process.

    :param spawn: starts a process that ends with this one.
    :param name: begins the name of its folder.
    """

    def __init__(self, spawn: Callable[..., subprocess.Popen[Any]], name: str) -> None:
        self._spawn = spawn
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))

    @abstractmethod
    def start(self) -> None:
        """Start it, and wait until it answers."""

    def kill(self) -> None:
        """Kill the process, which cannot shut down in order."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def away(self) -> Iterator[None]:
        """Keep the server down within the block."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def stop(self) -> None:
        """Kill it, and remove its data."""
        self.kill()
        shutil.rmtree(self.folder)
