"""The ledger: the slot is confirmed with the durable prefix over all sinks, and never moves backwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiorepl import LSN
from aiorepl.source.ledger import Ledger

SINKS = ("a", "b", "c")
START = LSN(100)

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["receive", "complete", *(f"{call} {sink}" for call in ("accept", "durable") for sink in SINKS)]
        ),
        st.integers(0, 300).map(LSN),
    ),
    max_size=40,
)


def take(ledger: Ledger, what: str, lsn: LSN) -> None:
    """One step of a pipeline, in any order."""
    call, _, sink = what.partition(" ")
    if sink:
        getattr(ledger, call)(sink, lsn)
    else:
        getattr(ledger, call)(lsn)


@given(steps)
def test_positions_never_move_backwards(steps):
    """No order of reports moves a position backwards."""
    ledger = Ledger(START, SINKS)
    before = (ledger.received, ledger.end, ledger.flushed)
    for what, lsn in steps:
        take(ledger, what, lsn)
        after = (ledger.received, ledger.end, ledger.flushed)
        assert all(old <= new for old, new in zip(before, after, strict=True))
        before = after


@given(steps)
def test_flushed_is_the_least_durable_position_of_what_was_received(steps):
    """``flushed`` is the minimum of all durable positions and of the received end."""
    ledger = Ledger(START, SINKS)
    durable, end = dict.fromkeys(SINKS, START), START
    for what, lsn in steps:
        take(ledger, what, lsn)
        call, _, sink = what.partition(" ")
        if call == "durable":
            durable[sink] = max(durable[sink], lsn)
        elif call == "complete":
            end = max(end, lsn)
        assert min(*durable.values(), end) == ledger.flushed
        assert ledger.flushed <= ledger.accepted <= ledger.end <= ledger.received


def test_accepted_is_not_durable():
    """Accepted transactions confirm nothing."""
    ledger = Ledger(START, ["a", "b"])
    ledger.complete(LSN(200))
    ledger.accept("a", LSN(200))
    ledger.accept("b", LSN(150))
    assert (LSN(150), START) == (ledger.accepted, ledger.flushed)


def test_quiet_wal_waits_for_the_sinks_like_a_transaction():
    """WAL without changes is confirmed once every sink has passed it."""
    ledger = Ledger(START, ["a"])
    ledger.complete(LSN(200))
    ledger.complete(LSN(300))
    ledger.durable("a", LSN(200))
    assert LSN(200) == ledger.flushed
    ledger.durable("a", LSN(300))
    assert LSN(300) == ledger.flushed


def test_a_sink_ahead_of_the_stream_confirms_nothing_that_did_not_come():
    """A position that a sink kept from an earlier run confirms no more than was received again."""
    ledger = Ledger(START, ["a"])
    ledger.durable("a", LSN(500))
    assert START == ledger.flushed
    ledger.complete(LSN(200))
    assert LSN(200) == ledger.flushed


def test_without_sinks_what_ends_is_flushed():
    """Without sinks, everything that is received is flushed."""
    ledger = Ledger(START, [])
    ledger.complete(LSN(200))
    assert LSN(200) == ledger.accepted == ledger.flushed


def test_a_held_prepare_holds_the_confirmation_until_its_end_is_durable():
    """A held PREPARE stops the confirmation before it, and is sent again after a reconnect."""
    ledger = Ledger(START, ["a"])
    ledger.complete(LSN(150))
    ledger.hold("gid", LSN(200))
    ledger.complete(LSN(200))
    ledger.complete(LSN(300))
    ledger.durable("a", LSN(300))
    assert (LSN(150), LSN(150)) == (ledger.flushed, ledger.resend_from)
    ledger.release("gid", LSN(400))
    ledger.complete(LSN(400))
    assert LSN(150) == ledger.flushed
    ledger.durable("a", LSN(400))
    assert (LSN(400), None) == (ledger.flushed, ledger.resend_from)


def test_a_release_concerns_its_own_transaction():
    """The end of one held transaction leaves the hold of another one, whatever their order and names."""
    for first, second in (("a", "b"), ("b", "a")):
        ledger = Ledger(START, ["s"])
        ledger.complete(LSN(150))
        ledger.hold(first, LSN(200))
        ledger.complete(LSN(200))
        ledger.hold(second, LSN(250))
        ledger.complete(LSN(250))
        ledger.release(first, LSN(300))
        ledger.complete(LSN(300))
        ledger.durable("s", LSN(300))
        assert (LSN(200), LSN(200)) == (ledger.flushed, ledger.resend_from)
        ledger.release(second, LSN(400))
        ledger.complete(LSN(400))
        ledger.durable("s", LSN(400))
        assert (LSN(400), None) == (ledger.flushed, ledger.resend_from)


def test_a_release_leaves_a_later_transaction_of_the_same_gid():
    """A gid is used again after its transaction has ended; a replayed release does not concern the later one."""
    ledger = Ledger(START, ["s"])
    ledger.hold("gid", LSN(200))
    ledger.complete(LSN(200))
    ledger.release("".join(["g", "id"]), LSN(300))  # noqa: FLY002 - an equal string that is another object
    ledger.complete(LSN(300))
    ledger.complete(LSN(400))
    ledger.durable("s", LSN(400))
    assert (LSN(400), None) == (ledger.flushed, ledger.resend_from)
    ledger.hold("gid", LSN(500))
    ledger.complete(LSN(500))
    ledger.release("gid", LSN(300))
    ledger.complete(LSN(600))
    ledger.durable("s", LSN(600))
    assert (LSN(400), LSN(400)) == (ledger.flushed, ledger.resend_from)


def test_a_release_without_sinks():
    """A hold goes with the transaction that releases it, even if no sink reports progress afterwards."""
    ledger = Ledger(START, [])
    ledger.complete(LSN(150))
    ledger.hold("gid", LSN(200))
    ledger.complete(LSN(200))
    ledger.release("gid", LSN(300))
    assert LSN(150) == ledger.flushed
    ledger.complete(LSN(300))
    assert (LSN(300), None) == (ledger.flushed, ledger.resend_from)


def test_a_sink_that_lost_what_it_had():
    """``flushed`` moves back as far as the server does not know it; a greater loss is reported."""
    ledger = Ledger(LSN(10), ["a", "b"])
    ledger.complete(LSN(50))
    ledger.durable("a", LSN(40))
    ledger.durable("b", LSN(50))
    assert ledger.reset("a", LSN(10))
    assert LSN(10) == ledger.flushed
    ledger.durable("a", LSN(40))
    assert (LSN(40), True) == (ledger.confirm(), ledger.reset("b", LSN(40)))
    assert (False, LSN(40)) == (ledger.reset("a", LSN(30)), ledger.confirm())
    ledger.durable("b", LSN(50))
    assert LSN(40) == ledger.flushed
    ledger.durable("a", LSN(60))
    assert LSN(50) == ledger.confirm()


def test_a_release_of_what_is_durable():
    """A release whose end every sink has made durable moves ``flushed`` at once."""
    ledger = Ledger(START, ["a"])
    ledger.hold("gid", LSN(200))
    ledger.complete(LSN(300))
    ledger.durable("a", LSN(300))
    assert START == ledger.flushed
    ledger.release("gid", LSN(300))
    assert LSN(300) == ledger.flushed


def test_a_sink_that_was_reopened_at_a_later_position():
    """``flushed`` follows a sink that was reopened further on."""
    ledger = Ledger(START, ["a"])
    ledger.complete(LSN(300))
    assert ledger.reset("a", LSN(200))
    assert LSN(200) == ledger.flushed


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["end", "durable", "stand", "tell"]), st.sampled_from("ab"), st.integers(0, 9)
        ),
        max_size=30,
    )
)
def test_confirmed_is_durable_and_never_moves_back(steps):
    """Whatever sinks lose, a status confirms durable data only, and a loss of confirmed data is reported."""
    ledger, durable, confirmed = Ledger(LSN(0), "ab"), {"a": LSN(0), "b": LSN(0)}, LSN(0)
    for step, sink, number in steps:
        if step == "end":
            ledger.complete(LSN(ledger.end + number))
        elif step == "durable":
            durable[sink] = min(LSN(durable[sink] + number), ledger.end)
            ledger.durable(sink, durable[sink])
        elif step == "stand":
            lost = max(LSN(0), LSN(durable[sink] - number) if durable[sink] >= number else LSN(0))
            if not ledger.reset(sink, lost):
                assert lost < confirmed
                return
            assert lost >= confirmed
            durable[sink] = lost
        else:
            before, confirmed = confirmed, ledger.confirm()
            assert before <= confirmed <= min(durable.values())


def test_a_limit_on_the_confirmation():
    """While positions are compared with the stream, no status confirms more than where the server began."""
    ledger = Ledger(LSN(200), ("a",))
    ledger.confirm_at_most(LSN(100))
    assert LSN(100) == ledger.confirm()

    ledger.confirm_at_most(None)
    assert LSN(200) == ledger.confirm()


def test_a_move_of_flushed_is_signalled_once():
    """A move of ``confirmable`` calls the listener once."""
    ledger, calls = Ledger(START, ["a"]), []
    ledger.notify(lambda: calls.append(ledger.confirmable))
    ledger.complete(LSN(200))
    ledger.accept("a", LSN(200))
    assert [] == calls
    ledger.durable("a", LSN(150))
    ledger.durable("a", LSN(200))
    assert [LSN(150)] == calls


def test_a_limit_that_is_removed_is_signalled():
    """Removing a limit calls the listener; a listener that was removed is not called."""
    ledger, calls = Ledger(LSN(200), ["a"]), []
    ledger.confirm_at_most(LSN(100))
    ledger.notify(lambda: calls.append(ledger.confirmable))
    ledger.confirm_at_most(None)
    assert [LSN(200)] == calls
    ledger.notify(lambda: calls.append(ledger.confirmable))
    ledger.notify(None)
    ledger.confirm_at_most(None)
    assert [LSN(200)] == calls
