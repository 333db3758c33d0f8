"""Renames a masked column at the end of a program: its values must not arrive in the clear, not even after further starts.

The pattern of the mask may match nothing, so only the pipeline's memory tells that the new name is that of a masked column. The column
is renamed while the process runs, or while it is stopped. The running process must then end; if other sinks go on, because there is a
journal, it must end once it is asked to. Every later start must be refused with the names.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import asyncpg
from processes import Process
from stall_timeout import stall_timeout
from watch import Watch

from aiorepl.verify import Delivered
from aiorepl.verify.tables import SCHEMA

_DISCLOSED = "a value of the renamed column"
# Seconds until a process has started, and until one has ended.
_STARTED = 60.0
_ENDED = 60.0


class RenamedColumn:
    """Renames ``accounts.note``.

    :param watches: of the sinks that mask it.
    :param start: starts the process.
    :param started: whether its stream has started.
    :param goes_on: whether other sinks go on while the process runs.
    :param stopped: whether a process has written that a sink stops because of the new name.
    :param last_error: returns the last error of a process.
    """

    def __init__(
        self,
        dsn: str,
        watches: list[Watch],
        start: Callable[[], Awaitable[Process]],
        started: Callable[[], bool],
        goes_on: bool,
        stopped: Callable[[], bool],
        last_error: Callable[[], str],
    ) -> None:
        self.violations: list[str] = []
        self._dsn = dsn
        self._watches = watches
        self._start = start
        self._started = started
        self._goes_on = goes_on
        self._stopped = stopped
        self._last_error = last_error

    async def run(self, way: str) -> None:
        """Rename the column, write a row, and require that two starts are refused.

        :param way: ``running`` or ``stopped``.
        """
        if way == "running":
            process = await self._start()
            await self._wait(process, _STARTED, self._started)
            await self._rename()
            if self._goes_on:
                await self._wait(process, _ENDED, self._stopped)
                process.ask_to_stop()
            await self._require_end(process, "the process did not end")
        else:
            await self._rename()
        for _ in range(2):
            await self._require_end(await self._start(), "a start was not refused")
        for watch in self._watches:
            watch.look()
            shown = [entry for entry in watch.log if isinstance(entry, Delivered) and _shows(entry)]
            if shown:
                self.violations.append(
                    f"a masked column arrived in the clear after it was renamed: {shown[0].commit_lsn}"
                )

    async def _wait(self, process: Process, seconds: float, until: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with stall_timeout(seconds):
                while not until() and process.returncode is None:
                    await asyncio.sleep(0.02)

    async def _rename(self) -> None:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute(
            f"ALTER TABLE {SCHEMA}.accounts RENAME COLUMN note TO remark;"
            f"INSERT INTO {SCHEMA}.accounts (id, version, stamp, remark) VALUES (-1000000, 1, 'renamed', '{_DISCLOSED}')"
        )
        connection.terminate()

    async def _require_end(self, process: Process, otherwise: str) -> None:
        """Wait until the process ends with an error that names the column."""
        with contextlib.suppress(TimeoutError):
            async with stall_timeout(_ENDED):
                await process.wait()
        process.kill()
        await process.wait()
        if process.returncode != 1:
            self.violations.append(f"after a masked column was renamed, {otherwise}")
        elif "remark" not in (error := self._last_error()):
            self.violations.append(f"the error after a masked column was renamed does not name it: {error}")


def _shows(change: Delivered) -> bool:
    return any(_DISCLOSED in (row or {}).values() for row in (change.new, change.old))
