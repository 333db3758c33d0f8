"""Merges chunks into the stream: each at the position of its high watermark. Pure.

All slices of the source pass through a ``ChunkMerge`` before they are buffered. It removes watermarks and signals, shows the
other slices to the window of the table that is being read, and inserts a chunk where its watermark was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.loggers import logger
from aiorepl.lsn import LSN
from aiorepl.snapshot.merging.signals import Signal
from aiorepl.snapshot.merging.watermarks import Watermark
from aiorepl.snapshot.merging.window import Window
from aiorepl.transactions.changes import Message
from aiorepl.transactions.control_messages import SIGNAL, is_control
from aiorepl.transactions.resync import is_resync
from aiorepl.transactions.slices import Slice

_log = logger("aiorepl.snapshot")

_NOWHERE: Final = LSN(0)

Arrival = Callable[[LSN], Sequence[Slice]]
"""Takes the LSN where a watermark ends, and returns the slices to insert there."""


@dataclass(slots=True)
class _Awaited:
    """A watermark that has not arrived.

    :param end: where it ends, once that is known.
    """

    arrive: Arrival
    lost: Callable[[], None]
    end: LSN | None = None


class ChunkMerge:
    """The hook between the source and the buffers of one pipeline.

    :param slot: the slot to which the watermarks and signals belong.
    :ivar window: the window of the table that is being read; ``None`` without one.
    :ivar signals: the signals that have arrived and were not taken.
    :ivar before_delivery: coroutine functions to await before the slices that ``take`` returned are delivered.
    """

    def __init__(self, slot: str) -> None:
        self.window: Window | None = None
        self.signals: list[Signal] = []
        self.before_delivery: list[Callable[[], Awaitable[None]]] = []
        self._slot = slot
        self._awaited: dict[str, _Awaited] = {}
        # The position from which slices are held back; None: no slices are held back.
        self._hold: LSN | None = None
        self._held: list[Slice] = []
        self._reached: Callable[[], None] | None = None
        self._released: Callable[[], None] | None = None

    def take(self, slices: list[Slice]) -> list[Slice]:
        """Take the next slices of the source. Return the slices to deliver, with chunks in the place of watermarks."""
        if self._hold is not None:
            return self._pass_until_hold(slices)
        if self.window is None and not self._awaited and not any(map(_is_message, slices)):
            return slices
        return self._pass(slices)

    def expect(
        self, watermark: Watermark, arrive: Arrival, lost: Callable[[], None]
    ) -> Callable[[LSN], None]:
        """Await a watermark. Call this before it is written, because it may arrive before the server has answered.

        :param lost: called if the stream passes the watermark's position without it, as after a failover.
        :returns: a function to be called with the LSN where the watermark ends, once the watermark was written.
        """
        awaited = self._awaited[watermark.token] = _Awaited(arrive, lost)

        def written(end: LSN) -> None:
            awaited.end = end

        return written

    def forget(self, watermark: Watermark) -> None:
        """Stop awaiting a watermark."""
        self._awaited.pop(watermark.token, None)

    def abandon(self) -> None:
        """Forget the table that was being read: its watermarks and its window, and hold back nothing."""
        self.window = None
        self._awaited.clear()
        self.release()

    def rewound(self) -> None:
        """Forget the slices that the source will send again. Call it while no table is being read."""
        assert self.window is None
        self.signals.clear()
        self.before_delivery.clear()
        self._held.clear()

    # Holding the stream back at a position.

    def hold(self, lsn: LSN = _NOWHERE, reached: Callable[[], None] | None = None) -> None:
        """Hold back everything from a position on: the transactions that commit there or later.

        A later call with a higher position releases the slices before that position.

        :param lsn: by default everything that arrives from now on.
        :param reached: called once everything before the position was delivered.
        """
        self._hold, self._reached = lsn, reached
        self._notify()

    def release(self, slices: Sequence[Slice] = ()) -> None:
        """End the holding back of slices.

        :param slices: inserted before the slices that were held back.
        """
        if self._hold is None:
            return
        self._hold, self._reached = None, None
        self._held[:0] = slices
        self._notify()

    @property
    def blocked(self) -> bool:
        """Whether slices are held back, so that the source must not be read further."""
        return bool(self._held)

    def on_release(self, released: Callable[[], None]) -> None:
        """Call ``released`` when ``take_released`` may return something."""
        self._released = released

    def take_released(self) -> list[Slice]:
        """Return the slices that are no longer held back."""
        held, self._held = self._held, []
        return self.take(held)

    def _notify(self) -> None:
        if self._released is not None:
            self._released()

    def _pass_until_hold(self, slices: list[Slice]) -> list[Slice]:
        assert self._hold is not None
        if not self._held:
            for index, part in enumerate(slices):
                if self._is_held(part):
                    self._held = slices[index:]
                    slices = slices[:index]
                    break
        else:
            self._held += slices
            return []
        passed = self._pass(slices)
        if self._held and self._reached is not None:
            reached, self._reached = self._reached, None
            reached()
        return passed

    def _is_held(self, part: Slice) -> bool:
        """Whether a slice belongs to a transaction that commits at or after the position, or ends after it."""
        assert self._hold is not None
        if part.transaction is not None:
            return part.transaction.commit_lsn >= self._hold
        return part.end_lsn is None or part.end_lsn >= self._hold

    # Watermarks and signals.

    def _pass(self, slices: list[Slice]) -> list[Slice]:
        passed: list[Slice] = []
        for part in slices:
            if _is_message(part) and is_control((message := _message_of(part)).message):
                assert part.end_lsn is not None
                inserted = self._arrived(message, part.end_lsn)
                passed += inserted or [Slice(None, (), True, part.end_lsn, 0)]
            else:
                if self.window is not None:
                    self.window.observe(part)
                passed.append(part)
            if self._awaited and part.end_lsn is not None:
                self._look_for_lost(part.end_lsn)
        return passed

    def _arrived(self, message: Message, end: LSN) -> Sequence[Slice]:
        if message.prefix == SIGNAL:
            try:
                signal = Signal.parse(message.content, self._slot, end)
            except ConfigurationError as error:
                _log.warning("the signal at %s is ignored: it %s", end, error)
            else:
                self.signals += [] if signal is None else [signal]
            return ()
        watermark = Watermark.parse(message.content)
        if watermark is None or watermark.slot != self._slot:
            return ()
        awaited = self._awaited.pop(watermark.token, None)
        return () if awaited is None else awaited.arrive(end)

    def _look_for_lost(self, end: LSN) -> None:
        lost = [
            token for token, awaited in self._awaited.items() if awaited.end is not None and awaited.end < end
        ]
        for token in lost:
            self._awaited.pop(token).lost()


def _is_message(part: Slice) -> bool:
    return part.transaction is None and len(part.changes) > 0 and not is_resync(part)


def _message_of(part: Slice) -> Message:
    (message,) = part.changes
    assert isinstance(message, Message)
    return message
