"""Retry policies as data; stamina executes them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import stamina

from aiorepl.checked import checked
from aiorepl.errors import (
    ConnectionFailed,
    ConnectionLost,
    ServerError,
    SlotError,
    SpoolError,
    TransientError,
)
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.option_fields import Seconds

_sink_log = logger("aiorepl.sink")
_capture_log = logger("aiorepl.capture")
# The failures of one call are logged at most this often.
_LOG_SECONDS: Final = 30.0

# Stamina logs every retry in the process, without the reason and without a rate limit. So ``_Attempts`` logs its own retries
# instead.
_in_attempt: ContextVar[bool] = ContextVar("aiorepl_in_attempt", default=False)
logging.getLogger("stamina").addFilter(lambda record: not _in_attempt.get())

# SQLSTATE classes after which the same request may succeed: connection, rollback (a deadlock, a conflict with a standby's recovery),
# resources, operator intervention, system errors.
_TRANSIENT = ("08", "40", "53", "57", "58")
# Functions of the server whose errors pass, although the SQLSTATE does not say so. If WAL is removed while it is read, the
# SQLSTATE comes from an errno that may belong to another call. If a table is dropped while a catalog function opens it, the
# SQLSTATE says "internal error".
_PASSING: Final = frozenset({"CheckXLogRemoved", "relation_open"})


@checked("retry", zero=("timeout", "wait_initial", "wait_max"))
@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter, in stamina's terms.

    :param attempts: limits the number of attempts; ``None``: no limit.
    :param timeout: limits the total time, in seconds; ``None``: no limit. A wait counts as planned, and one attempt for at most
        half of the limit, so that a process that was suspended meanwhile tries again.
    :param wait_initial: the first wait, in seconds; each further wait is twice as long.
    :param wait_max: the longest wait, in seconds; a peer's Retry-After may ask for a longer one.
    :raises ConfigurationError: a value is out of range.
    """

    attempts: int | None = None
    timeout: Seconds[float | None] = Seconds(300.0)
    wait_initial: Seconds[float] = Seconds(0.1)
    wait_max: Seconds[float] = Seconds(30.0)

    def sink(
        self, call: str, *, rewind: bool = True, waits: Callable[[float], None] | None = None
    ) -> AsyncIterator[Any]:
        """Attempts at a call of a sink, repeated after TransientError, not earlier than the peer asks.

        :param call: the sink and the call, for the log.
        :param rewind: whether to repeat the call even if the error asks for a rewind.
        :param waits: called with the approximate seconds until the next attempt.
        """

        def pause(error: Exception) -> bool | float:
            if not isinstance(error, TransientError) or (error.rewind and not rewind):
                return False
            return True if error.retry_after is None else error.retry_after

        return self._attempts(pause, call, _sink_log, waits)

    def connection(self) -> AsyncIterator[Any]:
        """Attempts to connect to the source, repeated after errors that may pass."""
        return self._attempts(may_pass, "connecting to the source", _capture_log)

    def _attempts(
        self,
        pause: Callable[[Exception], bool | float],
        call: str,
        log: logging.Logger,
        waits: Callable[[float], None] | None = None,
    ) -> AsyncIterator[Any]:
        return _Attempts(self, pause, call, log, waits)


class _Attempts(AsyncIterator[Any]):
    """The attempts at one call, whose failures are logged. Stamina makes all attempts but the first."""

    def __init__(
        self,
        policy: RetryPolicy,
        pause: Callable[[Exception], bool | float],
        call: str,
        log: logging.Logger,
        waits: Callable[[float], None] | None,
    ) -> None:
        self._waits = waits
        self._pause = pause
        self._call = call
        self._log = log
        self._silent_until = -math.inf
        self._current: Any = None
        self._policy = policy
        self._began = 0.0
        self._spent = 0.0
        self._first: _FirstAttempt | None = None
        self._attempts: AsyncIterator[Any] | None = None

    async def __anext__(self) -> Any:
        if self._first is None:
            self._first = _FirstAttempt()
            self._began = time.monotonic()
            return self._first
        token = _in_attempt.set(True)
        try:
            if self._attempts is None:
                if self._first.error is None:
                    raise StopAsyncIteration
                self._attempts = self._of_stamina()
                self._current = await anext(self._attempts)
                with self._current:
                    raise self._first.error
            self._current = await anext(self._attempts)
        finally:
            _in_attempt.reset(token)
        self._began = time.monotonic()
        return self._current

    def _of_stamina(self) -> AsyncIterator[Any]:
        policy = self._policy
        return aiter(
            stamina.retry_context(
                on=self._on,
                attempts=policy.attempts,
                timeout=None,  # ``_on`` counts the time
                wait_initial=policy.wait_initial,
                wait_max=policy.wait_max,
                wait_jitter=policy.wait_initial,
            )
        )

    def _on(self, error: Exception) -> bool | float:
        pause = self._pause(error)
        now, timeout = time.monotonic(), self._policy.timeout
        if pause is False:
            return False
        if timeout is not None:
            self._spent += min(now - self._began, timeout / 2)
            if self._spent >= timeout:
                return False
        wait = self._current.next_wait if pause is True else pause
        self._spent += wait
        if self._waits is not None:
            self._waits(wait)
        if now >= self._silent_until:
            # Logged even after the last of ``attempts``, because only stamina knows that it is the last one.
            self._silent_until = now + _LOG_SECONDS
            self._log.warning(
                "%s failed at attempt %d, and is repeated in about %.1f s: %s",
                self._call,
                self._current.num,
                wait,
                error,
            )
        return pause


class _FirstAttempt:
    """The first attempt at a call. Most calls need no second one, and an attempt of stamina costs as much as a small transaction."""

    num: Final = 1

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None


class Backoff:
    """The back-off after losses: of data that a sink had accepted, of a connection, or of a query. Pure.

    The pauses grow as long as there is no progress between two losses. The policy's ``timeout`` limits the total
    back-off, not the time spent in attempts, because a large transaction may take hours to be received again.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._progress: LSN | None = None
        self._losses = 0
        self._waited = 0.0

    def pause(self, progress: LSN, retry_after: float | None = None) -> float | None:
        """Seconds to wait after a loss; ``None`` once the policy is exhausted.

        :param progress: the LSN that was reached before the loss.
        :param retry_after: the seconds that the peer asks for instead.
        """
        policy = self._policy
        if progress != self._progress:
            self._progress, self._losses, self._waited = progress, 0, 0.0
        self._losses += 1
        if policy.attempts is not None and self._losses >= policy.attempts:
            return None
        pause = min(policy.wait_initial * 2.0 ** min(self._losses - 1, 60), policy.wait_max)
        pause = pause if retry_after is None else retry_after
        self._waited += pause
        return pause if policy.timeout is None or self._waited <= policy.timeout else None


def may_pass(error: Exception) -> bool:
    """Whether the same request to the source may succeed later."""
    match error:
        case ConnectionFailed(permanent=permanent) | SpoolError(permanent=permanent):
            return not permanent
        case SlotError(busy=busy):
            return busy
        case ServerError(sqlstate=sqlstate):
            return (sqlstate or "").startswith(_TRANSIENT) or error.routine in _PASSING
        case ConnectionLost() | OSError():
            return True
    return False
