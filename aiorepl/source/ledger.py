"""Tracks the LSN up to which the stream is durable in every sink, and the slot may be confirmed. Pure.

There are three positions. *Received* is how far the server has sent. *Accepted* is how far the sinks have accepted; it frees
memory and confirms nothing. *Durable* is how far a sink has made changes durable; ``flushed`` is the minimum over all sinks,
always the end LSN of a transaction.

WAL without published changes has to move ``flushed`` as well, or a quiet table would keep the WAL of a busy database. A
keepalive between transactions means that everything before its LSN was sent. It becomes a slice without changes that ends
there. Like every other slice, it passes in order through every sink that keeps a position, and then moves ``flushed``. So
the position of a sink is never behind the confirmed LSN.

Source: ``get_flush_position`` and ``send_feedback`` in PostgreSQL's worker.c.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiorepl.lsn import LSN, ZERO


class Ledger:
    """The positions of one pipeline.

    They never move backwards when a reconnect repeats a part of the stream. ``reset`` can move ``flushed`` backwards, but never
    before the LSN that was confirmed to the server.

    :param start: where the stream begins; durable in every sink.
    :param sinks: the names of the sinks that a confirmation waits for.
    :param slot_lsn: nothing before this LSN is confirmed. Positions of an initial snapshot are before the slot's own,
        and a confirmation would move the slot back to them.
    """

    def __init__(self, start: LSN, sinks: Iterable[str], slot_lsn: LSN = ZERO) -> None:
        self._slot_lsn = slot_lsn
        self._received = start
        self._end = start
        self._flushed = start
        self._confirmed = start
        self._limit: LSN | None = None
        self._durable = dict.fromkeys(sinks, start)
        self._accepted = dict(self._durable)
        # For each hold, by gid and end LSN of the PREPARE: the end LSN before the PREPARE, and the end LSN that releases the hold.
        self._holds: dict[tuple[str, LSN], tuple[LSN, LSN | None]] = {}
        self._listener: Callable[[], None] | None = None
        self.on_confirmed: Callable[[], None] | None = None
        """Called when ``confirmed`` has moved."""

    @property
    def received(self) -> LSN:
        """How far the server has sent."""
        return self._received

    @property
    def end(self) -> LSN:
        """The end LSN of the last transaction that was received whole."""
        return self._end

    @property
    def accepted(self) -> LSN:
        """The LSN up to which every sink has accepted the stream."""
        return min(min(self._accepted.values(), default=self._end), self._end)

    @property
    def flushed(self) -> LSN:
        """The LSN up to which every sink has made the stream durable."""
        return self._flushed

    @property
    def confirmable(self) -> LSN:
        """The LSN that the next status confirms: ``flushed``, or the limit of ``confirm_at_most``; 0 confirms nothing."""
        lsn = self._flushed if self._limit is None else min(self._flushed, self._limit)
        return ZERO if lsn < self._slot_lsn else lsn

    @property
    def confirmed(self) -> LSN:
        """The LSN that the last status confirmed: the server may never send earlier transactions again."""
        return self._confirmed

    def notify(self, listener: Callable[[], None] | None) -> None:
        """Call ``listener`` once, when ``confirmable`` moves next; ``None`` cancels that."""
        self._listener = listener

    def receive(self, lsn: int) -> None:
        """Record that the server has sent all WAL up to ``lsn``."""
        if lsn > self._received:
            self._received = LSN(lsn)

    def complete(self, end_lsn: LSN) -> None:
        """Record a received slice that completes everything up to ``end_lsn``."""
        if end_lsn > self._end:
            # If a sink lags, as nearly always under load, ``flushed`` does not move.
            lagging = self._flushed < self._end and not self._holds
            self._end = end_lsn
            self._received = max(self._received, end_lsn)
            if not lagging:
                self._advance()

    def accept(self, sink: str, end_lsn: LSN) -> None:
        """Record that ``sink`` has accepted everything up to ``end_lsn``."""
        self._accepted[sink] = max(self._accepted[sink], end_lsn)

    def durable(self, sink: str, end_lsn: LSN) -> None:
        """Record that ``sink`` has made everything up to ``end_lsn`` durable."""
        self.accept(sink, end_lsn)
        if end_lsn > self._durable[sink]:
            self._durable[sink] = end_lsn
            self._advance()

    def confirm(self) -> LSN:
        """Return ``confirmable`` to be sent to the server, which may never send earlier transactions again."""
        confirmed = self.confirmable
        if confirmed > self._confirmed:
            self._confirmed = confirmed
            if self.on_confirmed is not None:
                self.on_confirmed()
        return confirmed

    def confirm_at_most(self, limit: LSN | None) -> None:
        """Limit what is confirmed until the next call; ``None`` removes the limit.

        A start that fails must not move the slot, or the next start could not compare the positions of the sinks with
        the stream.
        """
        self._limit = limit
        self._notify()

    def reset(self, sink: str, lsn: LSN) -> bool:
        """Record that ``sink`` was reopened at ``lsn``, which may be before its earlier positions.

        :returns: whether the server can still send everything after ``lsn``.
        """
        self._accepted[sink] = self._durable[sink] = lsn
        # ``flushed`` must not move back before the confirmed LSN.
        self._flushed = max(self._confirmed, min(self._flushed, lsn))
        self._advance()
        return lsn >= self._confirmed

    def restart(self, lsn: LSN) -> None:
        """Begin the stream of a new temporary slot at ``lsn``.

        A late report of a sink, about the former slot, may confirm transactions of the new slot that the sink does not have. That
        loses nothing: a temporary slot is never read again from its confirmed LSN.
        """
        self._slot_lsn = self._received = self._end = self._flushed = self._confirmed = lsn
        self._durable = dict.fromkeys(self._durable, lsn)
        self._accepted = dict(self._durable)
        self._holds.clear()

    def hold(self, gid: str, prepared: LSN) -> None:
        """Confirm nothing after the current end until ``release``, because a prepared transaction is kept in this process.

        Once its PREPARE is confirmed, the server never sends its rows again, only the COMMIT PREPARED.

        :param prepared: the end LSN of the PREPARE. Gid and LSN together are unique; a gid alone can be reused.
        """
        self._holds.setdefault((gid, prepared), (self._end, None))

    def release(self, gid: str, end_lsn: LSN) -> None:
        """End the hold of a decided transaction, as soon as everything up to ``end_lsn`` is durable."""
        prepared = max((lsn for name, lsn in self._holds if name == gid and lsn < end_lsn), default=None)
        if prepared is not None:
            self._holds[gid, prepared] = self._holds[gid, prepared][0], end_lsn
            self._advance()

    @property
    def resend_from(self) -> LSN | None:
        """Where the server has to start sending after a reconnect because of holds; ``None`` without holds."""
        return min((limit for limit, _ in self._holds.values()), default=None)

    def _advance(self) -> None:
        # A restarted sink may be ahead of the received stream. It then counts as being at the end of the received stream.
        flushed = durable = min(min(self._durable.values(), default=self._end), self._end)
        if self._holds:
            for key, (_, released) in list(self._holds.items()):
                if released is not None and released <= durable:
                    del self._holds[key]
            limit = self.resend_from
            flushed = durable if limit is None else min(durable, limit)
        if flushed > self._flushed:
            self._flushed = flushed
            self._notify()

    def _notify(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()
