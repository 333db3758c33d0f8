"""The process that compacts a journal beside a pipeline: ``python -m aiorepl.history.process``.

It gets the journal's store through its standard input, so no other user can see credentials. It ends when standard input is
closed, so it ends with the pipeline, even if the pipeline is killed. Its log is its standard error.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import struct
import sys
import threading
import time
from typing import Final

from aiorepl.errors import AioreplError
from aiorepl.history.catalog import Fenced
from aiorepl.history.compaction import Pace
from aiorepl.history.opening import open_compaction
from aiorepl.history.planning import Limits
from aiorepl.journal.reader import JournalReader
from aiorepl.loggers import logger
from aiorepl.storage.store import Store

NICENESS: Final = 10
LENGTH: Final = struct.Struct(">I")
FENCED: Final = 3
"""The exit code if another compaction has taken over the history. This process must not take the history back at once."""
_FAILED: Final = 1
_POLL: Final = 1.0

_log = logger("aiorepl.history")


def started_with(store: Store, limits: Limits, pace: Pace) -> bytes:
    """Return the bytes that the process reads at its start."""
    data = pickle.dumps((store, limits, pace))
    return LENGTH.pack(len(data)) + data


def main() -> int:
    """Compact until the standard input is closed, and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the pipeline ends and closes our input
    os.nice(NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    stdin = sys.stdin.buffer
    (length,) = LENGTH.unpack(stdin.read(LENGTH.size))
    store, limits, pace = pickle.loads(stdin.read(length))  # noqa: S301 - from the pipeline that started this process
    threading.Thread(target=_end_with, args=(stdin.fileno(),), daemon=True).start()
    try:
        while JournalReader(store).recorded_position() is None:
            time.sleep(_POLL)  # the pipeline has not written anything yet
        open_compaction(store, limits=limits, pace=pace).follow(threading.Event())
    except Fenced as error:
        _log.error("%s", error)
        return FENCED
    except AioreplError as error:
        _log.error("%s", error)
        return _FAILED
    return 0


def _end_with(stdin: int) -> None:
    os.read(stdin, 1)
    # End at once: a compaction can be killed at any point.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
