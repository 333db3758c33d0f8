"""The options of one sink: selection, transform, batches, concurrency, retries and error policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from aiorepl.checked import checked
from aiorepl.delivery.batching import BatchPolicy
from aiorepl.delivery.partitioning import Order, by_key, by_table, order
from aiorepl.delivery.sync_sink import ThreadedSink
from aiorepl.errors import ConfigurationError
from aiorepl.formats.routing import Routing
from aiorepl.retry import RetryPolicy
from aiorepl.sink import RoutingKey, Sink, SyncSink
from aiorepl.transforms.function import Transform, load

# Imported at run time, because the command line reads the type hints of Delivery.
from aiorepl.transforms.selection import Selection

OnError = Literal["halt", "dead_letter", "skip"]

_OWN_PACKAGES: Final = ("aiorepl", "aiorepl_sinks")


@checked(own=("sink",))
@dataclass(frozen=True, slots=True)
class Delivery:
    """A sink with options. A pipeline accepts it in place of a sink.

    :param sink: the sink.
    :param selection: the tables, kinds of change and columns that the sink gets; ``None``: everything.
    :param transform: a function, async or not, or its name ``"package.module:function"``. It is called with each selected
        change, and returns the change, the result of ``change.with_columns``, or ``None`` to drop the change. If it raises
        ``TransientError``, it is called again.
    :param schema_changes: whether the sink gets a ``SchemaChange`` before the first row of a changed table.
    :param publication_changes: whether the sink gets a ``PublicationChange`` for each change of the publications, of their tables and
        of partitions that the stream does not have.
    :param reselect: whether a large value that an update did not change, and that the server did not send (``UNCHANGED``), is read
        from the table before the selection is applied. It is the present value, which may be newer than the change.
    :param routing_key: a template (see ``Routing``) or a function, for sinks that route by key.
    :param concurrency: how many batches may be written at once. More than 1 requires a sink that is ``concurrent``.
    :param order: concurrency keeps the order of changes with the same ``"key"``, ``"table"`` or ``"routing_key"``.
    :param on_error: what happens to changes that the sink rejects permanently, or whose retries are spent: ``"halt"`` stops
        the sink, ``"dead_letter"`` writes them to ``dead_letters``, ``"skip"`` drops them and counts them in the statistics.
    :param dead_letters: a folder, or another sink, which gets batches with a ``rejection``.
    :param batches: the batch policy; ``None``: the pipeline's, with the sink's ``flush_seconds`` and ``flush_bytes``.
    :param retry: the retry policy; ``None``: the pipeline's.
    :raises ConfigurationError: the options contradict each other or the sink.
    """

    sink: Sink | SyncSink
    selection: Selection | None = None
    transform: Transform | str | None = None
    schema_changes: bool = False
    publication_changes: bool = False
    reselect: bool = False
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
        if self.on_error == "dead_letter" and self.dead_letters is None:
            raise ConfigurationError("on_error = dead_letter needs dead_letters: a folder to put them in")
        if self.on_error != "dead_letter" and self.dead_letters is not None:
            raise ConfigurationError("dead_letters are used only with on_error = dead_letter")
        if self.concurrency > 1 and not self.sink.concurrent:
            raise ConfigurationError(
                f"{type(self.sink).__name__} does not support concurrent writes: remove concurrency"
            )
        if self.publication_changes and not self.sink.takes_publication_changes:
            raise ConfigurationError(
                f"{type(self.sink).__name__} does not support changes of the publication: remove publication_changes"
            )
        if isinstance(self.transform, str):
            object.__setattr__(self, "transform", load(self.transform))
        if isinstance(self.routing_key, str):
            object.__setattr__(self, "routing_key", Routing(self.routing_key))
        order(self.order, None if isinstance(self.routing_key, str) else self.routing_key)


@dataclass(frozen=True, slots=True)
class ResolvedDelivery:
    """A ``Delivery`` with all defaults filled in, and an asynchronous sink."""

    sink: Sink
    batches: BatchPolicy
    retry: RetryPolicy
    selection: Selection | None = None
    transform: Transform | None = None
    schema_changes: bool = False
    publication_changes: bool = False
    reselect: bool = False
    routing_key: RoutingKey | None = None
    concurrency: int = 1
    order: Order = by_key
    on_error: OnError = "halt"
    dead_letters: Sink | None = None

    @property
    def needs_catalog(self) -> bool:
        """Whether the sink's selection or concurrency depends on the partition hierarchy."""
        ordered = self.concurrency > 1 and self.order in (by_key, by_table)
        return ordered or (self.selection is not None and bool(self.selection.rules))

    @property
    def needs_attributes(self) -> bool:
        """Whether the descriptions of tables must have the numbers of their columns."""
        return self.schema_changes or self.reselect or self.sink.needs_attributes


SinkSpec = Sink | SyncSink | Delivery
"""A sink as a pipeline takes it: alone, or with the options of a ``Delivery``."""


def resolve(
    sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec], batches: BatchPolicy, retry: RetryPolicy
) -> dict[str, ResolvedDelivery]:
    """Return the sinks by name, with the pipeline's policies as defaults.

    :raises ConfigurationError: the same sink is given twice, or two sinks share a folder of dead letters.
    """
    specs = named(sinks)
    resolved = {name: _resolve(spec, batches, retry) for name, spec in specs.items()}
    require_new(specs.values(), ())
    _require_own_folders(specs)
    return resolved


def named(sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec]) -> dict[str, SinkSpec]:
    """Return the sinks by name.

    :raises ConfigurationError: this is neither a list nor a mapping.
    """
    if isinstance(sinks, (Sink, SyncSink, Delivery, str, bytes)) or not isinstance(
        sinks, (Mapping, Iterable)
    ):
        raise ConfigurationError("sinks must be a list, or a mapping from names to sinks")
    return dict(sinks) if isinstance(sinks, Mapping) else _named(sinks)


def require_new(specs: Iterable[SinkSpec], used: Iterable[SinkSpec]) -> None:
    """Check that each sink object is used once.

    :param used: what the pipeline has used before.
    :raises ConfigurationError: a sink object is used twice.
    """
    seen = {id(sink) for spec in used for sink in _objects(spec)}
    for spec in specs:
        for sink in _objects(spec):
            if id(sink) in seen:
                raise ConfigurationError(
                    f"the same {type(sink).__name__} is used twice in the pipeline: create one object for each use"
                )
            seen.add(id(sink))


def _objects(spec: SinkSpec) -> list[Sink | SyncSink]:
    found = (spec.sink, spec.dead_letters) if isinstance(spec, Delivery) else (spec,)
    return [sink for sink in found if isinstance(sink, (Sink, SyncSink))]


def _require_own_folders(named: Mapping[str, SinkSpec]) -> None:
    """Check that no two sinks share a folder of dead letters: they would overwrite each other's letters."""
    owners: dict[Path, str] = {}
    for name, spec in named.items():
        dead_letters = spec.dead_letters if isinstance(spec, Delivery) else None
        path = dead_letters if isinstance(dead_letters, (str, Path)) else getattr(dead_letters, "path", None)
        if path is None:
            continue
        owner = owners.setdefault(Path(path).resolve(), name)
        if owner != name:
            raise ConfigurationError(
                f"sinks {owner} and {name} have the same folder of dead letters, {path}: give each sink its own folder"
            )


def _require_sink(sink: object) -> None:
    """Check that this is a sink object that defines ``write``."""
    if isinstance(sink, type) and issubclass(sink, (Sink, SyncSink)):
        raise ConfigurationError(f"{sink.__name__} is a class: create a sink with {sink.__name__}(…)")
    if not isinstance(sink, (Sink, SyncSink)):
        raise ConfigurationError(
            f"{type(sink).__name__} is not a sink: derive it from aiorepl.Sink, or from aiorepl.SyncSink if its calls block"
        )
    if type(sink).write in (Sink.write, SyncSink.write):
        raise ConfigurationError(f"{type(sink).__name__} must define write")


def _resolve(spec: SinkSpec, batches: BatchPolicy, retry: RetryPolicy) -> ResolvedDelivery:
    options = spec if isinstance(spec, Delivery) else Delivery(spec)
    transform, routing_key = options.transform, options.routing_key
    # Delivery has replaced names by functions.
    assert not isinstance(transform, str)
    assert not isinstance(routing_key, str)
    return ResolvedDelivery(
        _to_async(options.sink),
        options.batches or _with_flush_limits(options.sink, batches),
        options.retry or retry,
        selection=options.selection,
        transform=transform,
        schema_changes=options.schema_changes,
        publication_changes=options.publication_changes,
        reselect=options.reselect,
        routing_key=routing_key,
        concurrency=options.concurrency,
        order=order(options.order, routing_key),
        on_error=options.on_error,
        dead_letters=_dead_letters_sink(options.dead_letters),
    )


def _dead_letters_sink(target: Sink | SyncSink | Path | str | None) -> Sink | None:
    if isinstance(target, (str, Path)):
        # Imported here, because ``dead_letters`` imports half of the journal.
        from aiorepl.delivery.dead_letters import DeadLetters

        target = DeadLetters(target)
    return None if target is None else _to_async(target)


def _with_flush_limits(sink: Sink | SyncSink, batches: BatchPolicy) -> BatchPolicy:
    return replace(
        batches,
        flush_bytes=sink.flush_bytes or batches.flush_bytes,
        flush_seconds=sink.flush_seconds or batches.flush_seconds,
    )


def _to_async(sink: Sink | SyncSink) -> Sink:
    return ThreadedSink(sink) if isinstance(sink, SyncSink) else sink


def _named(sinks: Sequence[SinkSpec]) -> dict[str, SinkSpec]:
    """Name sinks after their classes: kafka, kafka-2. The suffix ``Sink`` is no part of the names of this project's sinks.

    A position is kept under the sink's name, so the rule must not change.
    """
    named: dict[str, SinkSpec] = {}
    for spec in sinks:
        cls = type(spec.sink if isinstance(spec, Delivery) else spec)
        own = cls.__module__.partition(".")[0] in _OWN_PACKAGES
        base = name = (cls.__name__.removesuffix("Sink") if own else cls.__name__).lower()
        count = 1
        while name in named:
            count += 1
            name = f"{base}-{count}"
        named[name] = spec
    return named
