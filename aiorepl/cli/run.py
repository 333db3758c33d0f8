"""``aiorepl run``: a pipeline from a TOML file; all that is wrong with the file is told before anything is connected."""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from aiorepl.cli.config import Checker, Mistakes, Options, below, suggestion
from aiorepl.errors import ConfigurationError

if TYPE_CHECKING:
    from aiorepl.delivery.config import Delivery
    from aiorepl.pipeline.pipeline import Pipeline
    from aiorepl.source.source import Source

_log = logging.getLogger("aiorepl.run")

_SECTIONS: Final = ("source", "journal", "pipeline", "sinks")
# What every sink has beside its own options, for this file alone; the rest is Delivery's.
_OURS: Final = ("type", "name")

# The same as examples/aiorepl.toml, which no wheel has.
EXAMPLE: Final = """\
# aiorepl run: a pipeline from a file. `aiorepl run --check` says whether it is in order.
#
# Any string may hold ${NAME} or ${NAME:-default} from the environment, and "file:/run/secrets/dsn" stands for the text
# of that file. Numbers of bytes may be written "16m".

[source]
dsn = "${DATABASE_URL:-postgresql://postgres@localhost:5432/postgres}"
slot = "orders"
publication = ["shop"]          # CREATE PUBLICATION shop FOR ALL TABLES;
create_slot = true
# temporary, failover, proto_version, streaming, two_phase, binary, messages, origin, interface, heartbeat_interval,
# receive_timeout, spill_dir, transaction_buffer_bytes

# With a journal the slot waits for nobody else, and every sink goes at its own pace.
# [journal]
# url = "/var/lib/aiorepl/journal"
# snapshot = true               # begin with the rows that are there when the slot is created
# retention = "7d 100gb"        # delete what all consumers have passed, past this age or size; else: aiorepl journal prune

# [pipeline]
# shutdown_timeout = 10         # seconds that sinks have to finish when we are stopped
# buffer_bytes = "16m"          # between the source and the sinks
# reconnect = true              # false: end with exit code 3 when the connection is lost
# [pipeline.batches]
# max_bytes = "1m"
# max_rows = 500                # a sink's own affair unless given
# linger = 0.5                  # seconds that a batch waits for more changes; 0 by default
# flush_bytes = "64m"
# flush_seconds = 1
# [pipeline.retry]
# timeout = 300                 # inf: no limit
# attempts = 100
# wait_initial = 0.1
# wait_max = 30

# As many as you like: `aiorepl sinks` lists what is installed. All but type and name are the sink's own options.
[[sinks]]
type = "jsonl"
name = "archive"                # what its position is kept under: do not change it
path = "events"
# rotate_bytes = "128m"
# on_error = "dead_letter"      # what the sink refuses: halt (the default), dead_letter or skip
# dead_letters = "refused"      # a folder; `aiorepl dlq` reads it and writes them again
# transform = "mine:transform"  # a function in mine.py, here beside the file: change -> change or None, async or not
# routing_key = "{new.tenant}"  # for sinks that route by key
# schema_changes = true         # also an event where a table's columns change
# concurrency and order: so many batches at once, for sinks that can (webhook), in order by "key" (or "table")
# [sinks.batches]               # the pipeline's unless given; so are [sinks.retry]
# flush_seconds = 5
# [sinks.selection]             # everything unless given
# tables = ["public.*", "!public.sessions"]
# kinds = ["insert", "update", "delete"]
# drop = ["*.*.password"]
# mask = ["public.customers.email"]    # ["public.customers.email?"] if there may be no such column
# keep = ["*.audit.password"]           # neither left out nor masked
# secret = "file:/run/secrets/mask"
"""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("aiorepl.toml"))
@click.option("--check", is_flag=True, help="Say whether the file is in order, and connect to nothing.")
@click.option("--example", is_flag=True, help="Print a file to begin with.")
@click.option(
    "--resnapshot", is_flag=True, help="Make the slot anew and load the tables again; needs a [journal]."
)
@click.option("--accept-gap", is_flag=True, help="Go on without what the slot has lost.")
def run(file: Path, check: bool, example: bool, resnapshot: bool, accept_gap: bool) -> int:
    """Run the pipeline that FILE describes, aiorepl.toml unless given, until SIGINT or SIGTERM.

    To begin: aiorepl run --example > aiorepl.toml. A DSN that is not in the file is AIOREPL_DSN, or the PG*
    environment.

    --resnapshot and --accept-gap answer what a start was refused for, once; a file cannot hold them.
    """
    if example:
        click.echo(EXAMPLE, nl=False)
        return 0
    once = {"resnapshot": resnapshot, "accept_gap": accept_gap}
    configured = load(file, **{name: chosen for name, chosen in once.items() if chosen})
    if check:
        click.echo(f"{file} is in order")
        return 0

    from aiorepl.cli.loop import run as run_loop
    from aiorepl.cli.loop import run_until_signal

    for name, kind in configured.sinks.items():
        _log.info("sink %s: %s", name, kind)
    return 130 if run_loop(run_until_signal(configured.pipeline)) else 0


@dataclass(frozen=True, slots=True)
class Configured:
    """What a file describes: the pipeline, not started, its source and journal, and its sinks and their types by name."""

    pipeline: Pipeline
    source: Source
    journal: str | None
    snapshot: bool
    sinks: Mapping[str, str]
    deliveries: Mapping[str, Delivery]


def load(path: Path, **once: bool) -> Configured:
    """Read a file, check all of it, and make what it describes. Nothing is connected.

    :param once: choices of the pipeline that are for this start alone.
    :raises ConfigurationError: the file cannot be read, or is not TOML.
    :raises Mistakes: what is in it is wrong.
    """
    checker = Checker()
    document = _document(path)
    # A transform stands in a module beside the file.
    sys.path.insert(0, str(path.resolve().parent))
    try:
        configured = _configured(checker, document, once)
    finally:
        sys.path.pop(0)
    if configured is None or checker.mistakes:
        raise Mistakes([f"{path}: {mistake}" for mistake in checker.mistakes])
    return configured


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        begin = f"aiorepl run --example > {shlex.quote(str(path))}"
        raise ConfigurationError(f"{path} does not exist; to begin with an example: {begin}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not TOML: it is not text in UTF-8") from None


def _configured(checker: Checker, document: dict[str, Any], once: Mapping[str, bool]) -> Configured | None:
    from aiorepl.delivery.batching import BatchPolicy
    from aiorepl.journal.retention import Retention
    from aiorepl.journal.store import open_store
    from aiorepl.pipeline.pipeline import FOR_EVER, Pipeline
    from aiorepl.retry import RetryPolicy

    for key in document:
        if key not in _SECTIONS:
            checker.wrong(below("", key), f"unknown, {suggestion(key, _SECTIONS)}")

    source: Source | None = None
    if "source" in document:
        source = checker.make("source", _source, document["source"], _source_options())
    else:
        checker.wrong("source", "missing: a table with slot and publication")

    options: dict[str, Any] = {}
    if "journal" in document:
        journal = Options({"url": str, "snapshot": bool, "retention": str}, frozenset({"url"}))
        given = checker.arguments("journal", document["journal"], journal)
        if given is not None:
            checker.call("journal.url", open_store, {"url": given["url"]})
            if "retention" in given:
                options["retention"] = checker.call(
                    "journal.retention", Retention.parse, {"text": given["retention"]}
                )
            options |= {"journal": given["url"], "snapshot": given.get("snapshot", False)}

    hints = {
        "shutdown_timeout": float,
        "buffer_bytes": int,
        "reconnect": bool,
        "batches": BatchPolicy,
        "retry": RetryPolicy,
    }
    options |= checker.arguments("pipeline", document.get("pipeline", {}), Options(hints)) or {}
    options["reconnect"] = FOR_EVER if options.get("reconnect", True) else None

    sinks = _sinks(checker, document.get("sinks", []), journal="journal" in document)
    if checker.mistakes or source is None:
        return None
    made = {name: sink for name, (_, sink) in sinks.items()}
    pipeline = checker.call("pipeline", Pipeline, {"source": source, "sinks": made, **options, **once})
    kinds = {name: kind for name, (kind, _) in sinks.items()}
    return Configured(pipeline, source, options.get("journal"), options.get("snapshot", False), kinds, made)


def _source(**options: Any) -> Source:
    from aiorepl.source.source import Source

    return Source(**{"dsn": os.environ.get("AIOREPL_DSN")} | options)


def _source_options() -> Options:
    from aiorepl.source.source import Source

    known = Options.of(Source)
    # The pipeline finds out the first, and the second is for programs.
    hints = {name: hint for name, hint in known.hints.items() if name not in ("deliver_prepared", "connect")}
    # Source would say the same, but one after the other.
    hints |= {
        "proto_version": Literal[1, 2, 3, 4],
        "streaming": Literal["off", "on", "parallel"],
        "origin": Literal["any", "none"],
        "interface": Literal["walsender", "sql"],
    }
    return replace(known, hints=hints, required=known.required - {"dsn"})


def _sinks(checker: Checker, tables: Any, *, journal: bool) -> dict[str, tuple[str, Delivery]]:
    """Types and sinks by name, of those that are right."""
    from aiorepl.pipeline.fan_out import JOURNAL
    from aiorepl.pipeline.registry import sinks as installed

    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        checker.wrong("sinks", "wants tables, each under [[sinks]]")
        return {}
    if not tables and not journal:
        checker.wrong("sinks", "missing: at least one [[sinks]] with a type, or a [journal]")
    kinds: dict[str, str] = {}
    made: dict[str, Delivery] = {}
    names: dict[str, str] = {JOURNAL: "the journal itself"} if journal else {}
    for place, table in ((f"sinks[{number}]", table) for number, table in enumerate(tables, 1)):
        if "name" in table:
            name = checker.value(f"{place}.name", str, table["name"])
            if name in names:
                checker.wrong(f"{place}.name", f"is that of {names[name]}")
            elif name == "":
                checker.wrong(f"{place}.name", "is empty")
            elif name is not None:
                names[name] = place
        if "type" not in table:
            checker.wrong(f"{place}.type", f"missing: one of {', '.join(sorted(installed()))}")
            continue
        kind = checker.value(f"{place}.type", str, table["type"])
        sink = None if kind is None else _sink(checker, place, kind, table)
        if sink is not None:
            kinds[place], made[place] = kind, sink
    # Those without a name are called by their types, numbered from the second of a kind on.
    named = {place: name for name, place in names.items() if place in made}
    for place, kind in kinds.items():
        if place not in named:
            numbered = itertools.chain([kind], (f"{kind}-{count}" for count in itertools.count(2)))
            named[place] = next(name for name in numbered if name not in names)
            names[named[place]] = place
    return {named[place]: (kinds[place], sink) for place, sink in made.items()}


def _sink(checker: Checker, place: str, kind: str, table: dict[str, Any]) -> Delivery | None:
    from aiorepl.delivery.config import Delivery
    from aiorepl.formats.routing import Routing
    from aiorepl.pipeline.registry import load as load_sink
    from aiorepl.pipeline.registry import sinks as installed
    from aiorepl.transforms.function import load as load_function

    if kind not in (known := installed()):
        checker.wrong(f"{place}.type", f"is not installed, {suggestion(kind, known)}")
        return None
    found = checker.call(f"{place}.type", load_sink, {"name": kind})
    if found is None:
        return None
    served = {name: hint for name, hint in Options.of(Delivery).hints.items() if name != "sink"}

    def deliver(**options: Any) -> Delivery:
        # Delivery would say the same, but one after the other, and without the option's name.
        for name, make in (("transform", load_function), ("routing_key", Routing)):
            if isinstance(options.get(name), str):
                (parameter,) = signature(make).parameters
                options[name] = checker.call(f"{place}.{name}", make, {parameter: options[name]})
                if options[name] is None and options.get("order") == name:
                    del options["order"]
        if options.get("concurrency", 1) < 1:
            checker.wrong(f"{place}.concurrency", "wants at least 1")
            del options["concurrency"]
        return Delivery(found(**{name: options.pop(name) for name in options.keys() - served}), **options)

    options = Options.of(found)
    # Type and name are read already; among the hints they are there to be suggested.
    ours = served | dict.fromkeys(_OURS, str)
    options = replace(options, hints=options.hints | ours, required=options.required - ours.keys())
    rest = {name: value for name, value in table.items() if name not in _OURS}
    made: Delivery | None = checker.make(place, deliver, rest, options)
    return made
