"""A copy of a server's data."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from aiorepl.testing import EmbeddedServer


class Backup:
    """A copy of a server's data, as a snapshot of its volume."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self._server = server
        self._copy = folder / "copy"

    async def _stopped(self, *commands: list[Any]) -> None:
        await asyncio.to_thread(self._server.kill)
        for command in commands:
            await asyncio.to_thread(subprocess.run, command, check=True)
        await asyncio.to_thread(self._server.start)

    async def take(self) -> None:
        """Copy the data."""
        await self._stopped(["cp", "-a", self._server.folder / "data", self._copy])

    async def restore(self) -> None:
        """Put the copy back."""
        data = self._server.folder / "data"
        await self._stopped(["rm", "-r", data], ["cp", "-a", self._copy, data])
