"""Which part of the stream is durable everywhere: the number that the slot is confirmed with. Pure.

Three positions stay apart. *Received* is how far the server has sent. *Accepted* is what sinks have taken into
their hands; it frees memory and confirms nothing. *Durable* is what every sink has made safe; ``flushed`` is its
prefix over all sinks, by end LSNs of transactions.

WAL that holds nothing for us has to move ``flushed`` as well, or a quiet table would keep the WAL of a busy
database. A keepalive that arrives while no transaction is partly here says that everything below it was sent, so it
is a slice without changes that ends there, and goes the way of every other: in order, through every sink that keeps
a position, and only then into ``flushed``. There is no second rule, and a position that a sink holds is never behind
what the slot was told.

Source: ``get_flush_position`` and ``send_feedback`` in PostgreSQL's worker.c.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiorepl.lsn import LSN


class Ledger:
    """The positions of one pipeline. They never move backwards, whatever a reconnect brings again, unless a sink has lost
    what it had; what the server was told never does.

    :param start: the position the stream begins at: durable before we came.
    :param sinks: the names of those whose word is needed.
    """

    def __init__(self, start: LSN, sinks: Iterable[str]) -> None:
        self._received = start
        self._end = start
        self._flushed = start
        self._told = start
        # Where the server begins to send, until its stream is compared with what the sinks hold.
        self._unproven: LSN | None = None
        self._durable = dict.fromkeys(sinks, start)
        self._accepted = dict(self._durable)
        # By gid and the end of the PREPARE: the end before it, and the end LSN that releases it.
        self._holds: dict[tuple[str, LSN], tuple[LSN, LSN | None]] = {}

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
        """What every sink has taken."""
        return min(min(self._accepted.values(), default=self._end), self._end)

    @property
    def flushed(self) -> LSN:
        """What every sink has made durable."""
        return self._flushed

    def receive(self, lsn: int) -> None:
        """WAL up to ``lsn`` was sent to us, in whatever form."""
        if lsn > self._received:
            self._received = LSN(lsn)

    def complete(self, end_lsn: LSN) -> None:
        """A slice that completes everything up to ``end_lsn`` was received."""
        if end_lsn > self._end:
            # Held back by a sink, ``flushed`` does not move with the end: so with every transaction under load.
            behind = self._flushed < self._end and not self._holds
            self._end = end_lsn
            self.receive(end_lsn)
            if not behind:
                self._advance()

    def accept(self, sink: str, end_lsn: LSN) -> None:
        """``sink`` has taken everything up to ``end_lsn``."""
        self._accepted[sink] = max(self._accepted[sink], end_lsn)

    def durable(self, sink: str, end_lsn: LSN) -> None:
        """``sink`` has made everything up to ``end_lsn`` durable."""
        self.accept(sink, end_lsn)
        if end_lsn > self._durable[sink]:
            self._durable[sink] = end_lsn
            self._advance()

    def confirm(self) -> LSN:
        """``flushed``, which the server is told: what ended by then may never come again."""
        told = self._flushed if self._unproven is None else min(self._flushed, self._unproven)
        self._told = max(self._told, told)
        return told

    def confirm_at_most(self, begins: LSN | None) -> None:
        """Confirm no more than ``begins`` to the server until the next call, with ``None``.

        A start that is refused must not move the slot, or the next start would find nothing to compare.
        """
        self._unproven = begins

    def reset(self, sink: str, lsn: LSN) -> bool:
        """``sink`` was opened again and holds everything up to ``lsn``, be it more or less than it has said before.

        :returns: whether the server still has what lies behind.
        """
        self._accepted[sink] = self._durable[sink] = lsn
        # What the server has not heard of it need not hear.
        self._flushed = max(self._told, min(self._flushed, lsn))
        self._advance()
        return lsn >= self._told

    def hold(self, gid: str, prepared: LSN) -> None:
        """A prepared transaction was received that nobody but us has; it must come again if we end.

        Once its PREPARE is confirmed the server never sends its rows again, only that it committed. So nothing is
        confirmed from here on, until ``release``.

        :param prepared: where the PREPARE ended; with it the gid is a name for good, by itself it is used again.
        """
        self._holds.setdefault((gid, prepared), (self._end, None))

    def release(self, gid: str, end_lsn: LSN) -> None:
        """The held transaction has ended; its hold goes when everything up to ``end_lsn`` is durable."""
        prepared = max((at for name, at in self._holds if name == gid and at < end_lsn), default=None)
        if prepared is not None:
            self._holds[gid, prepared] = self._holds[gid, prepared][0], end_lsn
            self._advance()

    @property
    def resend_from(self) -> LSN | None:
        """From where the server has to send again after a reconnect, for what is held; ``None`` when nothing is."""
        return min((limit for limit, _ in self._holds.values()), default=None)

    def _advance(self) -> None:
        # A sink may hold more than we have received (its own position, after a restart): that counts to the end.
        safe = min(min(self._durable.values(), default=self._end), self._end)
        for name, (_, released) in list(self._holds.items()):
            if released is not None and released <= safe:
                del self._holds[name]
        held = self.resend_from
        self._flushed = max(self._flushed, safe if held is None else min(safe, held))
