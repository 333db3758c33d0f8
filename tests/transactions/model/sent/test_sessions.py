"""Any sessions, streamed in any way, in any reads, within any budget, deliver what committed, in commit order."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from aiorepl.pgoutput.options import Streaming

pytestmark = pytest.mark.by_day

AT = st.integers(0, 3)
GIDS = st.sampled_from(["g", "h"])


@pytest.fixture
def agree(sender, reader, units, tmp_path):
    """Check that the assembled WAL of a world is what the world expects, in one way of sending it."""

    def agree(world, seed: int) -> None:
        dice = Random(seed)
        streaming = dice.choice(list(Streaming))
        two_phase = dice.random() < 0.7
        delivered = two_phase and dice.random() < 0.4
        slice_bytes = dice.choice((50, 200, 1_000_000))
        budget, eager = dice.choice((1, 1000, 3000, 1_000_000)), dice.choice((0.1, 0.5, 1))

        def read_as(streaming: Streaming):
            sent = sender(dice, streaming=streaming, two_phase=two_phase, eager=eager).send(world.wal)
            read = reader(
                streaming, tmp_path, budget=budget, deliver_prepared=delivered, slice_bytes=slice_bytes
            )
            return read, read.read(sent, dice)

        read, slices = read_as(streaming)
        if read.doubtful:
            read, slices = read_as(Streaming.OFF)

        assert world.expected(delivered=delivered, two_phase=two_phase) == units(slices)
        inside = False
        for part in slices:
            assert len(list(part.changes)) == len(part.changes)
            if part.transaction is not None:
                assert inside is not part.first
                inside = not part.last
        waiting = read.assembler.in_progress
        if not world.sessions and not world.prepared:
            assert (0, 0, 0) == (waiting.memory, waiting.spooled, len(waiting))
        assert 0 <= waiting.memory - waiting.fixed <= budget

    return agree


@pytest.fixture
def machine(world, agree) -> type[RuleBasedStateMachine]:
    """A world whose steps hypothesis chooses, checked at its end."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.world = world()

        def session(self, place: int) -> int:
            if not self.world.sessions:
                self.world.begin()
            return list(self.world.sessions)[place % len(self.world.sessions)]

        @rule()
        def begin(self) -> None:
            self.world.begin()

        @rule(
            at=AT,
            table=st.sampled_from([1, 2]),
            kind=st.sampled_from(["insert", "update", "delete", "truncate"]),
        )
        def write(self, at: int, table: int, kind: str) -> None:
            self.world.write(self.session(at), table, kind)

        @rule(at=AT, table=st.sampled_from([1, 2]))
        def alter(self, at: int, table: int) -> None:
            self.world.alter(self.session(at), table)

        @rule(at=AT)
        def message(self, at: int) -> None:
            self.world.message(self.session(at))

        @rule()
        def message_now(self) -> None:
            self.world.message_now()

        @rule(at=AT, what=st.sampled_from(["savepoint", "savepoint", "release", "rollback_to"]))
        def nest(self, at: int, what: str) -> None:
            getattr(self.world, what)(self.session(at))

        @rule(at=AT, what=st.sampled_from(["commit", "rollback"]))
        def close(self, at: int, what: str) -> None:
            getattr(self.world, what)(self.session(at))

        @rule(at=AT, gid=GIDS)
        def prepare(self, at: int, gid: str) -> None:
            self.world.prepare(self.session(at), gid)

        @rule(gid=GIDS, commit=st.booleans())
        def decide(self, gid: str, commit: bool) -> None:
            self.world.decide(gid, commit=commit)

        @rule(seed=st.integers(0, 1000))
        def check(self, seed: int) -> None:
            agree(self.world, seed)

        def teardown(self) -> None:
            self.world.end()
            for seed in range(5):
                agree(self.world, seed)

    return Machine


def test_searched(machine):
    """Hypothesis searches for the smallest world that is delivered wrongly."""
    run_state_machine_as_test(machine, settings=settings(max_examples=150, stateful_step_count=40))


@pytest.mark.parametrize("block", range(4))
def test_thrown(world, agree, block):
    """Random worlds are delivered as expected; a failure prints its seed."""
    for seed in range(block * 500, (block + 1) * 500):
        dice = Random(seed)
        turned = world()
        for _ in range(dice.randrange(10, 80)):
            turned.step(dice)
        turned.end()
        try:
            agree(turned, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
