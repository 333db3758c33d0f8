"""How one sink is served: what it gets, in what form and batches, how many at once, and what becomes of its errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.partitioning import Order, by_key, by_table, order
from aiorepl.delivery.sync_sink import ThreadedSink
from aiorepl.errors import ConfigurationError
from aiorepl.formats.routing import Routing
from aiorepl.retry import RetryPolicy
from aiorepl.sink import RoutingKey, Sink, SyncSink
from aiorepl.transforms.function import Transform, load

# Not for type checkers alone: a file's tables are read by the hints of Delivery.
from aiorepl.transforms.selection import Selection

OnError = Literal["halt", "dead_letter", "skip"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A sink with choices of its own; a pipeline takes these wherever it takes sinks.

    :param selection: tables, kinds and columns; everything unless given.
    :param transform: called with each selected change; returns it, what ``change.with_columns`` made of it, or ``None``
        to leave it out; async or not, or ``"package.module:function"``. It may raise TransientError to be called again.
    :param schema_changes: also give the sink a ``SchemaChange`` before the first row that looks otherwise.
    :param routing_key: a template (see ``Routing``) or function, for sinks that route by key.
    :param concurrency: how many batches may be written at once, for sinks that are ``concurrent``.
    :param order: what stays in order then: the changes of a ``"key"``, of a ``"table"`` or of a ``"routing_key"``.
    :param on_error: what becomes of changes that are refused for good, or for which the retries are spent: ``"halt"``
        stops the sink, ``"dead_letter"`` puts them aside, ``"skip"`` counts them in the statistics and goes on.
    :param dead_letters: a folder, or another sink, which gets batches with a ``rejection``.
    :param batches: the pipeline's unless given, but for what the sink says of its flushes (``Sink.flush_seconds``).
    :param retry: the pipeline's unless given.
    :raises ConfigurationError: for choices that do not go together.
    """

    sink: Sink | SyncSink
    selection: Selection | None = None
    transform: Transform | str | None = None
    schema_changes: bool = False
    routing_key: RoutingKey | str | None = None
    concurrency: int = 1
    order: Literal["key", "table", "routing_key"] = "key"
    on_error: OnError = "halt"
    dead_letters: Sink | SyncSink | Path | str | None = None
    batches: BatchPolicy | None = None
    retry: RetryPolicy | None = None

    def __post_init__(self) -> None:
        _require_sink(self.sink)
        if self.dead_letters is not None and not isinstance(self.dead_letters, (str, Path)):
            _require_sink(self.dead_letters)
        if self.on_error not in ("halt", "dead_letter", "skip"):
            raise ConfigurationError(
                f"on_error {self.on_error!r} does not exist: it is halt, dead_letter or skip"
            )
        if self.on_error == "dead_letter" and self.dead_letters is None:
            raise ConfigurationError("on_error = dead_letter needs dead_letters: a folder to put them in")
        if self.on_error != "dead_letter" and self.dead_letters is not None:
            raise ConfigurationError("dead_letters are used only with on_error = dead_letter")
        if self.concurrency > 1 and not self.sink.concurrent:
            raise ConfigurationError(
                f"{type(self.sink).__name__} takes one batch at a time: leave concurrency out"
            )
        if self.concurrency < 1:
            raise ConfigurationError("concurrency is at least 1")
        if isinstance(self.transform, str):
            object.__setattr__(self, "transform", load(self.transform))
        if isinstance(self.routing_key, str):
            object.__setattr__(self, "routing_key", Routing(self.routing_key))
        order(self.order, None if isinstance(self.routing_key, str) else self.routing_key)


@dataclass(frozen=True, slots=True)
class ResolvedDelivery:
    """A delivery with nothing left open."""

    sink: Sink
    batches: BatchPolicy
    retry: RetryPolicy
    selection: Selection | None = None
    transform: Transform | None = None
    schema_changes: bool = False
    routing_key: RoutingKey | None = None
    concurrency: int = 1
    order: Order = by_key
    on_error: OnError = "halt"
    dead_letters: Sink | None = None

    @property
    def needs_catalog(self) -> bool:
        """Whether its selection or concurrency depends on the partition hierarchy."""
        ordered = self.concurrency > 1 and self.order in (by_key, by_table)
        return ordered or (self.selection is not None and bool(self.selection.rules))


SinkSpec = Sink | SyncSink | Delivery


def resolve(
    sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec], batches: BatchPolicy, retry: RetryPolicy
) -> dict[str, ResolvedDelivery]:
    """Every sink by its name, with the pipeline's policies where it has none of its own.

    :raises ConfigurationError: a sink is given twice, although each is opened and called by itself; or two sinks share a
        folder of dead letters.
    """
    if isinstance(sinks, (Sink, SyncSink, Delivery, str)) or not isinstance(sinks, (Mapping, Iterable)):
        raise ConfigurationError("sinks are a list, or a mapping from their names to them")
    named = dict(sinks) if isinstance(sinks, Mapping) else _named(sinks)
    complete = {name: _complete(given, batches, retry) for name, given in named.items()}
    seen: set[int] = set()
    for given in named.values():
        for sink in (given.sink, given.dead_letters) if isinstance(given, Delivery) else (given,):
            if isinstance(sink, (Sink, SyncSink)) and id(sink) in seen:
                raise ConfigurationError(
                    f"one {type(sink).__name__} stands in two places of the pipeline: make one for each"
                )
            seen.add(id(sink))
    _require_folders(named)
    return complete


def _require_folders(named: Mapping[str, SinkSpec]) -> None:
    """Check that no two sinks share a folder of dead letters, where they would overwrite each other's."""
    owners: dict[Path, str] = {}
    for name, given in named.items():
        letters = given.dead_letters if isinstance(given, Delivery) else None
        path = letters if isinstance(letters, (str, Path)) else getattr(letters, "path", None)
        if path is None:
            continue
        owner = owners.setdefault(Path(path).resolve(), name)
        if owner != name:
            raise ConfigurationError(
                f"sinks {owner} and {name} keep their dead letters in one folder, {path}: give each a folder of its own"
            )


def _require_sink(sink: object) -> None:
    """Check that it is one; a type checker would have said so."""
    if isinstance(sink, type) and issubclass(sink, (Sink, SyncSink)):
        raise ConfigurationError(
            f"{sink.__name__} is the class of a sink: make one of it, {sink.__name__}(…)"
        )
    if not isinstance(sink, (Sink, SyncSink)):
        raise ConfigurationError(
            f"{type(sink).__name__} is no sink: derive it from aiorepl.Sink, or from aiorepl.SyncSink if its calls block"
        )
    if type(sink).write in (Sink.write, SyncSink.write):
        raise ConfigurationError(f"{type(sink).__name__} must define write")


def _complete(given: SinkSpec, batches: BatchPolicy, retry: RetryPolicy) -> ResolvedDelivery:
    choices = given if isinstance(given, Delivery) else Delivery(given)
    transform, routing_key = choices.transform, choices.routing_key
    # Their names were looked up when the delivery was made.
    assert not isinstance(transform, str)
    assert not isinstance(routing_key, str)
    return ResolvedDelivery(
        _asynchronous(choices.sink),
        choices.batches or _with_flush_limits(choices.sink, batches),
        choices.retry or retry,
        selection=choices.selection,
        transform=transform,
        schema_changes=choices.schema_changes,
        routing_key=routing_key,
        concurrency=choices.concurrency,
        order=order(choices.order, routing_key),
        on_error=choices.on_error,
        dead_letters=_letters(choices.dead_letters),
    )


def _letters(given: Sink | SyncSink | Path | str | None) -> Sink | None:
    if isinstance(given, (str, Path)):
        # Imported here: it brings half of the journal.
        from aiorepl.delivery.dead_letters import DeadLetters

        given = DeadLetters(given)
    return None if given is None else _asynchronous(given)


def _with_flush_limits(sink: Sink | SyncSink, batches: BatchPolicy) -> BatchPolicy:
    return replace(
        batches,
        flush_bytes=sink.flush_bytes or batches.flush_bytes,
        flush_seconds=sink.flush_seconds or batches.flush_seconds,
    )


def _asynchronous(sink: Sink | SyncSink) -> Sink:
    return ThreadedSink(sink) if isinstance(sink, SyncSink) else sink


def _named(sinks: Sequence[SinkSpec]) -> dict[str, SinkSpec]:
    """Name sinks after their classes, without the suffix ``Sink``: kafka, kafka-2."""
    named: dict[str, SinkSpec] = {}
    for given in sinks:
        cls = type(given.sink if isinstance(given, Delivery) else given)
        base = name = (cls.__name__.removesuffix("Sink") or cls.__name__).lower()
        count = 1
        while name in named:
            count += 1
            name = f"{base}-{count}"
        named[name] = given
    return named
