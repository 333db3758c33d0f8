"""A journal that is pruned while it is written: what its consumers have passed goes, as far as it is not retained."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiorepl.errors import JournalError
from aiorepl.journal.retention import Retention, prune

_log = logging.getLogger("aiorepl.journal")

_LONGEST: Final = 60.0
_SHORTEST: Final = 1.0


async def keep_pruned(url: str, retention: Retention) -> None:
    """Prune now and again and again, until cancelled. Never fails: the stream does not depend on it."""
    age = _LONGEST if retention.seconds is None else retention.seconds
    pause = max(_SHORTEST, min(age, _LONGEST))
    told = ""
    while True:
        try:
            gone = await asyncio.to_thread(prune, url, retain=retention)
        except (JournalError, OSError) as error:
            text = f"{type(error).__name__}: {error.strerror if isinstance(error, OSError) else error}"
            if text != told:
                _log.warning("journal %s cannot be pruned, and grows: %s", url, text)
            told = text
        else:
            told = ""
            if gone:
                _log.info("pruned %d segments of journal %s, up to %s", len(gone), url, gone[-1])
        await asyncio.sleep(pause)
