"""Load the TOML file of ``aiorepl run``. Every error in it is reported before anything connects."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from aiorepl.cli.toml_tables import InvalidFile, TableReader, TableSchema, below, document_of
from aiorepl.durations import Duration
from aiorepl.errors import ConfigurationError
from aiorepl.secret import Secret
from aiorepl.suggestions import suggestion

if TYPE_CHECKING:
    from aiorepl.delivery.config import Delivery
    from aiorepl.delivery.dead_letters import DeadLetters
    from aiorepl.pipeline.pipeline import Pipeline
    from aiorepl.snapshot.options import SnapshotOptions
    from aiorepl.source.source import Source
    from aiorepl.storage.store import Store
    from aiorepl.transforms.selection import Selection

_SECTIONS: Final = ("source", "journal", "snapshot", "pipeline", "http", "sinks")
_MIN_TOKEN: Final = 16
# Keys of [[sinks]] that belong to neither the sink nor Delivery.
_ENTRY_KEYS: Final = ("type", "name")


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A loaded file.

    :param path: its path.
    :param pipeline: the pipeline, which is not started.
    :param journal: the store of the journal, if there is one.
    :param snapshot: whether the pipeline begins with a snapshot of the tables, or the options of that
        snapshot.
    :param state_dir: without a journal, the folder for the state that a restart needs.
    :param sinks: type of each sink by name.
    :param deliveries: each sink with its options, by name.
    :param journal_selection: the columns that are dropped or masked before the journal is written.
    :param settings: the options outside of [[sinks]], by key, with the texts of their variables and files; to compare two files.
    :param written: the options of each sink, by name; likewise.
    :param tables: the value of ``sinks`` in the file.
    :param token: the token of requests that change the pipeline; ``None``: there are no such requests.
    """

    path: Path
    pipeline: Pipeline
    source: Source
    journal: Store | None
    snapshot: bool | SnapshotOptions
    state_dir: str | None
    sinks: Mapping[str, str]
    deliveries: Mapping[str, Delivery]
    journal_selection: Selection | None
    settings: Mapping[str, Any] = field(repr=False)
    written: Mapping[str, Any] = field(repr=False)
    tables: Any = field(repr=False)
    token: Secret[str] | None

    def renewed(self, name: str) -> Delivery:
        """Return new objects for a sink, with the options that the file had when it was loaded.

        :raises InvalidFile: a variable or a file that the options name is gone.
        """
        reader = TableReader()
        found = _sinks(reader, self.tables, journal=self.journal is not None)
        if reader.errors or name not in found:
            raise InvalidFile([f"{self.path}: {error}" for error in reader.errors] or [f"no sink {name!r}"])
        return found[name].delivery

    def dead_letters(self, name: str) -> DeadLetters:
        """Return the dead letters of a sink.

        :raises ConfigurationError: there is no such sink, or it has no folder of dead letters.
        """
        from aiorepl.delivery.dead_letters import DeadLetters

        if name not in self.deliveries:
            raise ConfigurationError(
                f"{self.path} has no sink {name!r}; its sinks are {', '.join(self.deliveries)}"
            )
        letters = self.deliveries[name].dead_letters
        if not isinstance(letters, (str, Path)):
            raise ConfigurationError(f"sink {name!r} in {self.path} has no dead_letters folder")
        return DeadLetters(letters)


@dataclass(frozen=True, slots=True)
class _Sink:
    """A sink of a file.

    :param written: its options in the file, with the texts of their variables and files.
    """

    kind: str
    delivery: Delivery
    written: Any


def load(
    path: Path, dsn: str | None = None, *, resnapshot: bool = False, accept_gap: bool = False
) -> PipelineFile:
    """Load a file and construct its pipeline. Nothing connects.

    :param dsn: replaces the file's.
    :param resnapshot: as in ``Pipeline``; a file cannot hold it.
    :param accept_gap: likewise.
    :raises ConfigurationError: the file cannot be read or is not TOML.
    :raises InvalidFile: the file has errors.
    """
    reader = TableReader()
    document = document_of(path, "run")
    if dsn is not None and isinstance(document.get("source"), dict):
        # The variables of the replaced dsn need not be set.
        document["source"].pop("dsn", None)
    # Modules of transforms are beside the file.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        overrides = {"resnapshot": resnapshot, "accept_gap": accept_gap}
        loaded = _pipeline(reader, path, document, dsn or default_dsn(), overrides)
    finally:
        sys.path.pop(0)
    if loaded is None or reader.errors:
        raise InvalidFile([f"{path}: {error}" for error in reader.errors])
    return loaded


def _pipeline(
    reader: TableReader, path: Path, document: dict[str, Any], dsn: str | None, overrides: Mapping[str, bool]
) -> PipelineFile | None:
    from aiorepl.pipeline.pipeline import Pipeline

    for key in document:
        if key not in _SECTIONS:
            reader.error(below("", key), f"unknown; {suggestion(key, _SECTIONS)}")

    source: Source | None = None
    reader.kept.add("source.dsn")
    if "source" in document:
        source = reader.make("source", partial(_source, dsn), document["source"], _source_schema())
    else:
        reader.error("source", "missing: a table with slot and publication")

    options = _options(reader, document)
    sinks = _sinks(reader, document.get("sinks"), journal="journal" in document)
    token = _token(reader, document)
    if reader.errors or source is None:
        return None
    deliveries = {name: sink.delivery for name, sink in sinks.items()}
    pipeline = reader.call(
        "pipeline", Pipeline, {"source": source, "sinks": deliveries, **options, **overrides}
    )
    return PipelineFile(
        path,
        pipeline,
        source,
        options.get("journal"),
        options.get("snapshot", False),
        options.get("state_dir"),
        {name: sink.kind for name, sink in sinks.items()},
        deliveries,
        options.get("journal_selection"),
        _settings(reader, document),
        {name: sink.written for name, sink in sinks.items()},
        document.get("sinks"),
        token,
    )


def _token(reader: TableReader, document: dict[str, Any]) -> Secret[str] | None:
    """Read the token in [http]."""
    if "http" not in document:
        return None
    schema = TableSchema({"token": str}, frozenset({"token"}))
    token = (reader.arguments("http", document["http"], schema) or {}).get("token")
    if token is not None and (len(token) < _MIN_TOKEN or not token.isascii() or not token.isprintable()):
        reader.error("http.token", f"must have at least {_MIN_TOKEN} printable ASCII characters")
    return None if token is None else Secret(token)


def _settings(reader: TableReader, document: dict[str, Any]) -> dict[str, Any]:
    sections = {
        name: table for name, table in document.items() if name != "sinks" and isinstance(table, dict)
    }
    keys = {
        below(name, key): _written(reader, below(name, key), value)
        for name, table in sections.items()
        for key, value in table.items()
    }
    # An empty table may have a meaning, as [snapshot] has.
    return keys | {f"[{name}]": True for name in sections}


def _written(reader: TableReader, key: str, value: Any) -> Any:
    """Return the value of a key, and by key the texts in it, with the texts of variables and files."""
    texts = reader.texts.items()
    return value, {
        at[len(key) :]: text for at, text in texts if at.startswith((f"{key}.", f"{key}[")) or at == key
    }


def _options(reader: TableReader, document: dict[str, Any]) -> dict[str, Any]:
    """Read the options of the pipeline: the tables [journal], [snapshot] and [pipeline]."""
    from aiorepl.delivery.batching import BatchPolicy
    from aiorepl.journal.retention import Retention
    from aiorepl.pipeline.pipeline import FOR_EVER
    from aiorepl.pipeline.publication_policy import OnNewTable, OnPartitionChange
    from aiorepl.pipeline.slot_losses import OnSlotLost
    from aiorepl.retry import RetryPolicy
    from aiorepl.snapshot.options import SnapshotOptions

    options: dict[str, Any] = {}
    if "journal" in document:
        settings = reader.arguments("journal", document["journal"], _journal_schema())
        if settings is not None:
            store = _open_journal(reader, settings)
            if "retention" in settings:
                options["retention"] = reader.call(
                    "journal.retention", Retention.parse, {"text": settings["retention"]}
                )
            options |= {
                "journal": store,
                "snapshot": settings.get("snapshot", False),
                "compact": settings.get("compact", False),
                "journal_selection": settings.get("selection"),
            }

    if "snapshot" in document:
        # The table [snapshot] switches the snapshot on, even if the table is empty.
        options["snapshot"] = reader.make("snapshot", SnapshotOptions, document["snapshot"])

    hints = {
        "shutdown_timeout": Duration,
        "buffer_bytes": int,
        "reconnect": bool,
        "wait_for_slot": bool,
        "state_dir": str,
        "publication_interval": Duration,
        "on_new_table": OnNewTable,
        "on_partition_change": OnPartitionChange,
        "on_slot_lost": OnSlotLost,
        "max_resnapshots_per_day": int,
        "batches": BatchPolicy,
        "retry": RetryPolicy,
    }
    options |= reader.arguments("pipeline", document.get("pipeline", {}), TableSchema(hints)) or {}
    if options.get("publication_interval") == "off":
        options["publication_interval"] = None
    options["reconnect"] = FOR_EVER if options.get("reconnect", True) else None
    return options


def open_journal(path: Path) -> Store:
    """Open the journal of a pipeline's file. The rest of the file is not read.

    :raises ConfigurationError: the file cannot be read, is not TOML, or has no valid [journal].
    :raises InvalidFile: the table has errors.
    """
    reader, document = TableReader(), document_of(path, "run")
    if "journal" not in document:
        raise ConfigurationError(f"{path} has no [journal]: its sinks read the slot")
    settings = reader.arguments("journal", document["journal"], _journal_schema())
    store = None if settings is None else _open_journal(reader, settings)
    if store is None:
        raise InvalidFile([f"{path}: {error}" for error in reader.errors])
    return store


def _journal_schema() -> TableSchema:
    from aiorepl.transforms.selection import Selection

    hints = {"url": str, "config": Mapping[str, str], "snapshot": bool, "retention": str, "compact": bool}
    return TableSchema({**hints, "selection": Selection}, frozenset({"url"}))


def _open_journal(reader: TableReader, settings: Mapping[str, Any]) -> Store | None:
    from aiorepl.storage.opening import open_store

    arguments = {name: settings[name] for name in ("url", "config") if name in settings}
    store: Store | None = reader.call("journal", open_store, arguments, secret="config" in settings)
    return store


def default_dsn() -> str | None:
    """Return the DSN of the environment; ``None``: the PG* variables name the server."""
    return os.environ.get("AIOREPL_DSN") or None


def named_source(
    pipeline: Path | None, dsn: str | None, slot: str | None = None, publications: tuple[str, ...] = ()
) -> Source:
    """Return the source that the options of a command name: a pipeline's file, with another DSN if there is one, or a slot.

    :raises ConfigurationError: the file, or an option, is not valid.
    """
    from aiorepl.source.source import Source

    if pipeline is not None:
        return load(pipeline, dsn).source
    # A command that needs no slot or no publication still needs a Source.
    return Source(dsn or default_dsn(), "unused" if slot is None else slot, publications or "unused")


def _source(default: str | None, /, **options: Any) -> Source:
    from aiorepl.source.source import Source

    return Source(**{"dsn": default} | options)


def _source_schema() -> TableSchema:
    from aiorepl.source.source import Source

    schema = TableSchema.of(Source)
    # ``connect`` takes Python objects, which TOML does not have.
    hints = {name: hint for name, hint in schema.hints.items() if name != "connect"}
    # Source checks ``proto_version`` as well, but raises at the first error.
    hints["proto_version"] = Literal[1, 2, 3, 4]
    return replace(schema, hints=hints, required=schema.required - {"dsn"})


def _sinks(reader: TableReader, tables: Any, *, journal: bool) -> dict[str, _Sink]:
    """Return each valid sink, by name."""
    from aiorepl.pipeline.registry import sinks as installed
    from aiorepl.pipeline.source_reader import JOURNAL

    if tables is None:
        if not journal:
            reader.error("sinks", "missing: at least one [[sinks]] with a type, or a [journal]")
        return {}
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        reader.error("sinks", "must be an array of tables: write [[sinks]]")
        return {}
    if not tables and not journal:
        reader.error("sinks", "is empty: write at least one [[sinks]] with a type, or a [journal]")
    found: dict[str, _Sink] = {}
    names: dict[str, str] = {JOURNAL: "the journal"} if journal else {}
    for key, table in ((f"sinks[{number}]", table) for number, table in enumerate(tables, 1)):
        if "name" in table:
            name = reader.value(f"{key}.name", str, table["name"])
            if name in names:
                reader.error(f"{key}.name", f"is already the name of {names[name]}")
            elif name == "":
                reader.error(f"{key}.name", "is empty")
            elif name is not None:
                names[name] = key
        if "type" not in table:
            reader.error(f"{key}.type", f"missing: one of {', '.join(sorted(installed()))}")
            continue
        kind = reader.value(f"{key}.type", str, table["type"])
        sink = None if kind is None else _sink(reader, key, kind, table)
        if sink is not None:
            assert kind is not None
            found[key] = _Sink(kind, sink, _written(reader, key, table))
    # Sinks without a name are called by their type: kafka, kafka-2, kafka-3.
    named = {key: name for name, key in names.items() if key in found}
    for key, each in found.items():
        if key not in named:
            kind = each.kind
            numbered = itertools.chain([kind], (f"{kind}-{count}" for count in itertools.count(2)))
            named[key] = next(name for name in numbered if name not in names)
            names[named[key]] = key
    return {named[key]: sink for key, sink in found.items()}


def _sink(reader: TableReader, key: str, kind: str, table: dict[str, Any]) -> Delivery | None:
    from aiorepl.delivery.config import Delivery
    from aiorepl.formats.routing import Routing
    from aiorepl.pipeline.registry import load as load_sink
    from aiorepl.pipeline.registry import sinks as installed
    from aiorepl.transforms.function import load as load_function

    if kind not in (known := installed()):
        reader.error(f"{key}.type", f"no sink {kind!r} is installed; {suggestion(kind, known)}")
        return None
    sink_class = reader.call(f"{key}.type", load_sink, {"name": kind})
    if sink_class is None:
        return None
    delivery_options = {name: hint for name, hint in TableSchema.of(Delivery).hints.items() if name != "sink"}

    def deliver(**options: Any) -> Delivery:
        # Delivery checks these options as well, but raises at the first error and does not name the
        # option.
        for name, make in (("transform", load_function), ("routing_key", Routing)):
            if isinstance(options.get(name), str):
                (parameter,) = signature(make).parameters
                options[name] = reader.call(f"{key}.{name}", make, {parameter: options[name]})
                if options[name] is None and options.get("order") == name:
                    del options["order"]
        if options.get("concurrency", 1) < 1:
            reader.error(f"{key}.concurrency", "must be at least 1")
            del options["concurrency"]
        return Delivery(
            sink_class(**{name: options.pop(name) for name in options.keys() - delivery_options}), **options
        )

    if getattr(sink_class, "reads_dsn_file", False):
        reader.kept.add(f"{key}.dsn")
    schema = TableSchema.of(sink_class)
    # The keys of the entry are no options of the sink. They are hints only so that a misspelled key is
    # suggested.
    common = delivery_options | dict.fromkeys(_ENTRY_KEYS, str)
    schema = replace(schema, hints=schema.hints | common, required=schema.required - common.keys())
    options = {name: value for name, value in table.items() if name not in _ENTRY_KEYS}
    delivery: Delivery | None = reader.make(key, deliver, options, schema)
    return delivery
