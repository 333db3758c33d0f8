"""An undecided prepared transaction holds the confirmation, under its gid and its PREPARE, because gids are reused."""

from __future__ import annotations

import pytest

from aiorepl.lsn import LSN
from aiorepl.source.ledger import Ledger


@pytest.fixture
def ledger() -> Ledger:
    """A ledger of one sink that has everything up to 10."""
    return Ledger(LSN(10), ["sink"])


def ended(ledger: Ledger, *ends: int, durable: bool = True) -> None:
    """Record that transactions were received up to these ends, and whether they are durable."""
    for end in ends:
        ledger.complete(LSN(end))
        if durable:
            ledger.durable("sink", LSN(end))


def test_held_until_durable(ledger):
    """Nothing from the PREPARE on is confirmed until the end of its transaction is durable."""
    ended(ledger, 20)
    ledger.hold("g", LSN(28))
    ended(ledger, 30, 40)
    assert (20, 20) == (ledger.flushed, ledger.resend_from)

    ledger.release("g", LSN(50))
    ended(ledger, 50, durable=False)
    assert 20 == ledger.flushed
    ledger.durable("sink", LSN(50))

    assert (50, None) == (ledger.flushed, ledger.resend_from)


def test_a_gid_again(ledger):
    """The second transaction of a gid is held from its own PREPARE on, even while the first is not durable."""
    ended(ledger, 20)
    ledger.hold("g", LSN(28))
    ledger.release("g", LSN(40))
    ended(ledger, 40, durable=False)
    ledger.hold("g", LSN(48))

    ledger.durable("sink", LSN(40))
    ended(ledger, 60)

    assert (40, 40) == (ledger.flushed, ledger.resend_from)


def test_a_gid_again_and_sent_again(ledger):
    """If both are sent again after a reconnect, the end of the first does not release the second."""
    ended(ledger, 20)
    ledger.hold("g", LSN(28))
    ledger.release("g", LSN(40))
    ended(ledger, 40, durable=False)
    ledger.hold("g", LSN(48))

    ledger.hold("g", LSN(28))
    ledger.release("g", LSN(40))
    ledger.hold("g", LSN(48))
    ended(ledger, 60)

    assert (40, 40) == (ledger.flushed, ledger.resend_from)
    ledger.release("g", LSN(70))
    ended(ledger, 70)
    assert (70, None) == (ledger.flushed, ledger.resend_from)


def test_known_and_sent_again(ledger):
    """A PREPARE and its end that are sent again after they were durable hold nothing."""
    ended(ledger, 20, 40, 60)

    ledger.hold("g", LSN(28))
    ledger.release("g", LSN(40))
    ended(ledger, 70)

    assert (70, None) == (ledger.flushed, ledger.resend_from)


def test_the_first_of_several(ledger):
    """The earliest PREPARE that is held counts, whichever transaction ends first."""
    ended(ledger, 20)
    ledger.hold("a", LSN(28))
    ended(ledger, 30)
    ledger.hold("b", LSN(38))
    ledger.release("b", LSN(50))
    ended(ledger, 50)
    assert (20, 20) == (ledger.flushed, ledger.resend_from)

    ledger.release("a", LSN(60))
    ended(ledger, 60)

    assert 60 == ledger.flushed


def test_the_end_of_the_unknown(ledger):
    """The end of a transaction that is not held changes nothing."""
    ledger.release("g", LSN(20))
    ended(ledger, 20)

    assert (20, None) == (ledger.flushed, ledger.resend_from)
