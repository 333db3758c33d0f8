"""Shows the progress of commands that take more than two seconds: as a changing line in a terminal, and in the log elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from aiorepl.cli.log import Log
from aiorepl.loggers import logger

_log = logger("aiorepl.progress")

_QUIET_SECONDS: Final = 2.0
_REFRESH_SECONDS: Final = 0.5
_LINE_SECONDS: Final = 30.0


@contextlib.contextmanager
def progress(log: Log, describe: Callable[[], str]) -> Iterator[None]:
    """Show the text of ``describe`` while the body runs. Another thread calls ``describe``."""
    ended = threading.Event()

    def show() -> None:
        if ended.wait(_QUIET_SECONDS):
            return
        if log.has_bars:
            _in_terminal(ended, describe)
        else:
            _log.info("%s", describe())
            while not ended.wait(_LINE_SECONDS):
                _log.info("%s", describe())

    thread = threading.Thread(target=show, name="aiorepl-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _in_terminal(ended: threading.Event, describe: Callable[[], str]) -> None:
    # Import rich only now, because most commands end before they need it.
    from rich.console import Console
    from rich.text import Text

    from aiorepl.cli.snapshot_progress import redirected_logs

    with Console(file=sys.stderr).status(Text(describe())) as status, redirected_logs():
        while not ended.wait(_REFRESH_SECONDS):
            status.update(Text(describe()))
