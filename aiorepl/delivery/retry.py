"""How long to keep trying, as data; stamina does the waiting."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import stamina

from aiorepl.errors import (
    ConnectionFailed,
    ConnectionLost,
    ServerError,
    SlotError,
    SpoolError,
    TransientError,
)

_log = logging.getLogger("aiorepl.sink")

# Classes of SQLSTATE after which the same request may succeed: connection, resources, operator intervention.
_PASSING = ("08", "53", "57", "58")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential pauses with jitter.

    :param attempts: how many tries in all, ``None`` for any number.
    :param seconds: how long in all, ``None`` for ever.
    :param first: the first pause in seconds; each further one is twice as long.
    :param longest: no pause is longer, but for what a peer asks with Retry-After.
    """

    attempts: int | None = None
    seconds: float | None = 300.0
    first: float = 0.1
    longest: float = 30.0

    def sink(self, call: str) -> AsyncIterator[Any]:
        """Attempts at a sink's call: again after TransientError, as late as the peer asks. ``call`` is for the log."""

        def pause(error: Exception) -> bool | float:
            if not isinstance(error, TransientError):
                return False
            _log.warning("%s is tried again: %s", call, error)
            return True if error.retry_after is None else error.retry_after

        return self._attempts(pause)

    def connection(self) -> AsyncIterator[Any]:
        """Attempts at the source: again after what may pass, never after what cannot."""
        return self._attempts(may_pass)

    def _attempts(self, on: Any) -> AsyncIterator[Any]:
        return stamina.retry_context(
            on=on,
            attempts=self.attempts,
            timeout=self.seconds,
            wait_initial=self.first,
            wait_max=self.longest,
            wait_jitter=self.first,
        )


def may_pass(error: Exception) -> bool:
    """Whether the source may be there again later, with nothing changed on our side."""
    match error:
        case ConnectionFailed(permanent=permanent):
            return not permanent
        case SlotError(busy=busy):
            return busy
        case ServerError(sqlstate=sqlstate):
            return sqlstate is not None and sqlstate[:2] in _PASSING
        case ConnectionLost() | SpoolError() | OSError():
            return True
    return False
