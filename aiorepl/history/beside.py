"""Runs the compaction of a journal as a process beside a pipeline, and restarts it if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from typing import Final

from aiorepl.errors import JournalError
from aiorepl.history.catalog import read_history
from aiorepl.history.compaction import Pace
from aiorepl.history.cursor import protect
from aiorepl.history.names import FOLDER
from aiorepl.history.planning import Limits
from aiorepl.history.process import FENCED, started_with
from aiorepl.journal.cursors import Cursors
from aiorepl.loggers import logger
from aiorepl.position import Position
from aiorepl.storage.store import Store

_log = logger("aiorepl.history")

_FIRST_PAUSE: Final = 1.0
_LAST_PAUSE: Final = 60.0
# A process that ran this long did some work, so the restarts' back-off begins anew.
_HEALTHY_SECONDS: Final = 60.0
# Longer than ``Pace.pass_seconds``: within that time, a live compaction begins a pass over new segments.
_LEFT_SECONDS: Final = 900.0
_LEVELS: Final = {"INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}
_LINE_BYTES: Final = 64 * 1024


def keep_uncompacted(store: Store, begin: Position) -> None:
    """Register the cursor of compaction, so that no segment is pruned before it is compacted.

    A damaged history is only logged: it does not keep the pipeline from running.

    :param begin: the journal's source.
    """
    try:
        protect(store.within(FOLDER), Cursors(store), begin)
    except JournalError as error:
        _log.error("%s", error)


async def compact_beside(store: Store, limits: Limits | None = None, pace: Pace | None = None) -> None:
    """Compact a journal in a process of its own, with low priority, until cancelled. Its errors are only logged.

    If another compaction has taken over the history, this one continues once the other has been idle for long.
    """
    pause = _FIRST_PAUSE
    while True:
        began = time.monotonic()
        try:
            code = await _run(started_with(store, limits or Limits(), pace or Pace()))
        except OSError as error:
            _log.error("compaction cannot be started: %s", error.strerror)
            code = -1
        if code == FENCED:
            _log.info("compaction goes on once the other one has done nothing for %.0f s", _LEFT_SECONDS)
            await _left(store.within(FOLDER))
            continue
        if time.monotonic() - began > _HEALTHY_SECONDS:
            pause = _FIRST_PAUSE
        _log.warning("compaction ended with %s: it is restarted in %.0f s", _reason(code), pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


async def _left(store: Store) -> None:
    """Wait until the history has not changed for ``_LEFT_SECONDS``: its owner has probably ended then."""
    before, now = None, await asyncio.to_thread(_version, store)
    while now != before:
        await asyncio.sleep(_LEFT_SECONDS)
        before, now = now, await asyncio.to_thread(_version, store)


def _version(store: Store) -> str | None:
    with contextlib.suppress(JournalError):
        if (found := read_history(store)) is not None:
            return found[1]
    return None  # the next start reports why the history cannot be read


async def _run(first: bytes) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "aiorepl.history.process",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(first)
            await process.stdin.drain()
        await _relay(process.stderr)
        return await process.wait()
    finally:
        process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _relay(lines: asyncio.StreamReader) -> None:
    """Log the process's log lines. A line without a level is part of a traceback, so it is logged as an error."""
    while True:
        try:
            line = await lines.readline()
        except ValueError:
            continue  # the line is longer than the limit: drop it
        if not line:
            return
        level, _, text = line.decode(errors="replace").rstrip().partition(" ")
        if level in _LEVELS:
            _log.log(_LEVELS[level], "%s", text)
        else:
            _log.error("compaction: %s", line.decode(errors="replace").rstrip())


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
