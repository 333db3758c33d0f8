"""Shared by all sinks here: a target in memory, and a way to run the tests of a case one by one."""

from __future__ import annotations

import inspect
import itertools
from contextlib import contextmanager

import pytest

from aiorepl import UNCHANGED, Message, Position, TransientError
from aiorepl.testing.conformance import Event


class Target:
    """The state that outlives a sink: events, and the position of a sink that keeps one with them."""

    def __init__(self):
        self.events: list[Event] = []
        self.position: Position | None = None
        self.rows: dict[tuple[str, str], dict] = {}
        self.away = False
        self.losing = False

    def check(self):
        """Raise what a client would."""
        if self.away:
            raise TransientError("the target does not answer")

    def answer(self):
        """Raise what a client would that has waited for an answer."""
        if self.losing:
            raise TransientError("the target's answer was lost")

    @contextmanager
    def lost_answer(self):
        """Within it the target does what it is asked, and no answer comes."""
        self.losing = True
        yield
        self.losing = False

    @contextmanager
    def outage(self):
        """Within it the target does not answer."""
        self.away = True
        yield
        self.away = False

    def event(self, change) -> Event:
        """A change as the target keeps it."""
        between = isinstance(change, Message) and change.transaction is None
        lsn = change.lsn if between else change.transaction.commit_lsn
        new = getattr(change, "new", None)
        if new is not None:
            new = {name: value for name, value in new.items() if value is not UNCHANGED}
        table = (change.schema, change.table) if hasattr(change, "schema") else None
        return Event(lsn, -1 if between else change.ordinal, change.kind, table, new)


@pytest.fixture(autouse=True)
def target(request) -> Target:
    """An empty target, which is also that of the case under test."""
    target = Target()
    if request.instance is not None:
        request.instance.target = target
    return target


@pytest.fixture
def failures():
    """Run every test of a case, or only those of these names, and return what those that failed said."""

    def run(case: type, *names: str) -> dict[str, str]:
        failed = {}
        for name, method in inspect.getmembers(case, inspect.isfunction):
            if not name.startswith("test_") or (names and name not in names):
                continue
            marks = [mark for mark in getattr(method, "pytestmark", ()) if mark.name == "parametrize"]
            values = [[{mark.args[0]: value} for value in mark.args[1]] for mark in marks]
            for chosen in itertools.product(*values):
                test = case()
                test.target = Target()
                try:
                    method(test, **{key: value for choice in chosen for key, value in choice.items()})
                except pytest.skip.Exception:
                    pass
                except Exception as error:  # noqa: BLE001 - a sink may raise anything
                    failed[name] = str(error)
        return failed

    return run
