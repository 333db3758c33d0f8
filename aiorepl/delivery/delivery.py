"""How one sink is served: what it gets, in what batches, and how long its errors are put up with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.retry import RetryPolicy
from aiorepl.delivery.selection import Selection
from aiorepl.delivery.threads import ThreadedSink
from aiorepl.sink import Sink, SyncSink


@dataclass(frozen=True, slots=True)
class Delivery:
    """A sink with choices of its own; a pipeline takes these wherever it takes sinks.

    :param selection: tables, kinds and columns; everything unless given.
    :param batches: the pipeline's unless given.
    :param retry: the pipeline's unless given.
    """

    sink: Sink | SyncSink
    selection: Selection | None = None
    batches: BatchPolicy | None = None
    retry: RetryPolicy | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A delivery with nothing left open."""

    sink: Sink
    selection: Selection | None
    batches: BatchPolicy
    retry: RetryPolicy


Given = Sink | SyncSink | Delivery


def served(
    sinks: Sequence[Given] | Mapping[str, Given], batches: BatchPolicy, retry: RetryPolicy
) -> dict[str, Served]:
    """Every sink by its name, with the pipeline's policies where it has none of its own."""
    named = dict(sinks) if isinstance(sinks, Mapping) else _named(sinks)
    return {name: _complete(given, batches, retry) for name, given in named.items()}


def _complete(given: Given, batches: BatchPolicy, retry: RetryPolicy) -> Served:
    choices = given if isinstance(given, Delivery) else Delivery(given)
    sink = choices.sink
    return Served(
        ThreadedSink(sink) if isinstance(sink, SyncSink) else sink,
        choices.selection,
        choices.batches or batches,
        choices.retry or retry,
    )


def _named(sinks: Sequence[Given]) -> dict[str, Given]:
    """Names after the classes, numbered from the second of a kind on."""
    named: dict[str, Given] = {}
    for given in sinks:
        base = name = type(given.sink if isinstance(given, Delivery) else given).__name__.lower()
        count = 1
        while name in named:
            count += 1
            name = f"{base}-{count}"
        named[name] = given
    return named
