"""The verifier: proves from a sink's contents that nothing was lost, invented, torn, reordered or confirmed too early. Pure.

It knows neither pipelines nor sinks: only a history, a log, and what was promised.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiorepl.testing.verify.contents import Contents
from aiorepl.testing.verify.history import History, Tables
from aiorepl.testing.verify.log import Entry
from aiorepl.testing.verify.promise import Promise, Verdict
from aiorepl.testing.verify.sequence import sequence


def verify(
    history: History, log: Iterable[Entry], promise: Promise | None = None, *, final: Tables | None = None
) -> Verdict:
    """Compare what was delivered with what was written.

    :param history: resolved, see ``History.resolve``.
    :param log: complete: the consumer has caught up with the history.
    :param final: the tables' rows at the end, by key; ``None``: they are not compared.
    """
    promise = promise or Promise()
    verdict = Verdict()
    contents = Contents(history, promise, verdict)
    changes = sequence(log, promise, verdict, history.keys)
    verdict.changes = len(changes)
    contents.compare(changes)
    if final is not None:
        contents.compare_final(final)
    return verdict
