"""Which signals a command handles."""

from __future__ import annotations

import signal

import pytest

from aiorepl.cli.event_loop import not_ignored

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize(
    ("ignored", "handled"),
    [
        ([], ALL),
        ([signal.SIGHUP], ALL[:2]),
        ([signal.SIGINT, signal.SIGHUP], [signal.SIGTERM]),
        ([signal.SIGTERM], ALL),
    ],
)
def test_ignored_signals(ignored: list[signal.Signals], handled: list[signal.Signals]) -> None:
    """An ignored SIGINT or SIGHUP stays ignored; SIGTERM always ends a command."""
    before = {number: signal.getsignal(number) for number in ALL}
    try:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        assert handled == not_ignored(*ALL)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
