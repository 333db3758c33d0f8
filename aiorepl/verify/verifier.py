"""The verifier: proves from a log that no change was lost, invented, torn, reordered or confirmed too early. Pure.

It knows a history, a log and the promised guarantees, but neither pipelines nor sinks.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiorepl.verify.contents import Contents
from aiorepl.verify.descriptions import check_descriptions
from aiorepl.verify.history import History, Tables
from aiorepl.verify.log import Entry
from aiorepl.verify.promise import Promise, Verdict
from aiorepl.verify.sequence import sequence


def verify(
    history: History, log: Iterable[Entry], promise: Promise | None = None, *, final: Tables | None = None
) -> Verdict:
    """Compare the delivered changes with the history.

    :param history: the resolved history, see ``History.resolve``. A transaction whose outcome is still unknown may be delivered
        as a whole, or not at all.
    :param log: the complete log: the consumer has caught up with the history.
    :param final: the tables' rows at the end, by key; ``None`` to skip this comparison.
    """
    promise = promise or Promise()
    verdict = Verdict()
    contents = Contents(history, promise, verdict)
    if promise.described:
        log = list(log)
        check_descriptions(log, verdict, exactly_once=promise.exactly_once)
    changes = sequence(log, promise, verdict, history.keys)
    verdict.changes = len(changes)
    contents.compare(changes)
    if final is not None:
        contents.compare_final(final)
    return verdict
