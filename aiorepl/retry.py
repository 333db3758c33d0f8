"""How long to keep trying, as data; stamina does the waiting."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import stamina

from aiorepl.errors import (
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    ServerError,
    SlotError,
    SpoolError,
    TransientError,
)
from aiorepl.lsn import LSN

_log = logging.getLogger("aiorepl.sink")

# Classes of SQLSTATE after which the same request may succeed: connection, resources, operator intervention.
_PASSING = ("08", "53", "57", "58")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, in stamina's terms.

    :param attempts: limits the number of attempts; ``None``: no limit.
    :param timeout: limits the total time, in seconds; ``None``: no limit.
    :param wait_initial: the first wait, in seconds; each further wait is twice as long.
    :param wait_max: the longest wait, in seconds; a peer's Retry-After may ask for a longer one.
    :raises ConfigurationError: a value is out of range.
    """

    attempts: int | None = None
    timeout: float | None = 300.0
    wait_initial: float = 0.1
    wait_max: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ConfigurationError("retry: attempts is at least 1; None for any number")
        if self.timeout is not None and not self.timeout >= 0:
            raise ConfigurationError("retry: timeout is 0 or more; None for ever")
        for name in ("wait_initial", "wait_max"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"retry: {name} is in seconds, 0 or more")

    def sink(self, call: str, *, rewind: bool = True) -> AsyncIterator[Any]:
        """Attempts at a sink's call: again after TransientError, as late as the peer asks.

        :param call: for the log.
        :param rewind: whether the same call helps also where the error asks for more than that.
        """

        def pause(error: Exception) -> bool | float:
            if not isinstance(error, TransientError) or (error.rewind and not rewind):
                return False
            _log.warning("%s failed, and is tried again while retries last: %s", call, error)
            return True if error.retry_after is None else error.retry_after

        return self._attempts(pause)

    def connection(self) -> AsyncIterator[Any]:
        """Attempts at the source: again after what may pass, never after what cannot."""
        return self._attempts(may_pass)

    def _attempts(self, on: Any) -> AsyncIterator[Any]:
        return stamina.retry_context(
            on=on,
            attempts=self.attempts,
            timeout=self.timeout,
            wait_initial=self.wait_initial,
            wait_max=self.wait_max,
            wait_jitter=self.wait_initial,
        )


class Rewinds:
    """How often, and after which pauses, a sink is sent again what it has lost. Pure.

    The pauses grow for as long as no more gets durable between one loss and the next. Of a policy's seconds the pauses
    count and not the time between them, in which a large transaction may come for hours.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._durable: LSN | None = None
        self._losses = 0
        self._waited = 0.0

    def pause(self, durable: LSN, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a loss; ``None`` when it has been tried often enough.

        :param durable: what the sink had made durable when it lost the rest.
        :param retry_after: what the peer asks for instead.
        """
        policy = self._policy
        if durable != self._durable:
            self._durable, self._losses, self._waited = durable, 0, 0.0
        self._losses += 1
        if policy.attempts is not None and self._losses >= policy.attempts:
            return None
        pause = min(policy.wait_initial * 2.0 ** min(self._losses - 1, 60), policy.wait_max)
        pause = pause if retry_after is None else retry_after
        self._waited += pause
        return pause if policy.timeout is None or self._waited <= policy.timeout else None


def may_pass(error: Exception) -> bool:
    """Whether the source may be there again later, with nothing changed on our side."""
    match error:
        case ConnectionFailed(permanent=permanent) | SpoolError(permanent=permanent):
            return not permanent
        case SlotError(busy=busy):
            return busy
        case ServerError(sqlstate=sqlstate):
            return sqlstate is not None and sqlstate[:2] in _PASSING
        case ConnectionLost() | OSError():
            return True
    return False
