"""Decides, when the stream is lost, how long to wait before a reconnect, and when a reconnect is useless. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from aiorepl.errors import ServerError, SlotError, SpoolError
from aiorepl.lsn import LSN
from aiorepl.retry import Backoff, RetryPolicy
from aiorepl.source.continuity import GAP_ADVICE

# The server's functions that report a missing WAL file. They identify the error, because messages are translated, and SQLSTATEs
# differ.
_WAL_REMOVED: Final = ("CheckXLogRemoved", "WalSndSegmentOpen", "wal_segment_open")
# A connection that lasts for less than this counts as a failed attempt; otherwise a policy without waits would never be exhausted.
_LEAST_SECONDS: Final = 1.0


class Interruptions:
    """The back-off between connections that are lost before they bring new data. Times are of any monotonic clock.

    The back-off starts again after a connection that has lasted for the policy's ``wait_max``, and at least for a second, because
    an idle stream brings no data either.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        # The policy limits the attempts to connect, and the pauses between attempts. The first loss is no attempt, so it counts
        # extra.
        attempts = None if policy.attempts is None else policy.attempts + 1
        timeout = None if policy.timeout is None else policy.timeout + policy.wait_initial
        self._policy = replace(policy, attempts=attempts, timeout=timeout)
        self._backoff = Backoff(self._policy)
        self._started_at = -math.inf
        self._removed: str | None = None

    def started(self, now: float) -> None:
        """Record that a connection has begun to stream."""
        self._started_at = now

    def pause(self, error: Exception, furthest: LSN, now: float) -> float | None:
        """Seconds to wait before a reconnect; ``None`` once the policy is exhausted.

        :param furthest: the end of the received data.
        :raises SlotError: the server does not have the WAL that the slot needs.
        """
        if isinstance(error, ServerError) and error.routine in _WAL_REMOVED:
            if error.message == self._removed:
                raise SlotError(
                    f"{error.message}, though the slot needs it: the server crashed or was restored, or the file was deleted, "
                    f"so the changes after {furthest} are lost for this slot. Drop the slot and start with create_slot "
                    f"(--create-slot): {GAP_ADVICE}"
                ) from error
            # Usually, restart_lsn has moved past this file while the connection still read it: the server applies a candidate for
            # restart_lsn, even one from an earlier connection, when a status confirms it. The next connection begins after the
            # file.
            self._removed = error.message
        if isinstance(error, SpoolError):
            # A reconnect alone does not free disk space.
            return self._policy.wait_max
        if now - self._started_at >= max(self._policy.wait_max, _LEAST_SECONDS):
            self._backoff = Backoff(self._policy)
        return self._backoff.pause(furthest)
