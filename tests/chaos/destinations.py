"""The sinks of the process under test, made from a program's options."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiorepl import (
    Batch,
    BatchPolicy,
    Delivery,
    PermanentError,
    Position,
    Selection,
    Sink,
    SinkContext,
    TransientError,
)
from aiorepl.testing.faults import FailAfterWrite, FaultySink, Reject, Slow
from aiorepl.verify.tables import PARENTS, SCHEMA
from aiorepl_sinks.jsonl import JsonLinesSink

_SECRET = "k" * 32
# The number of calls of a faulty sink that may fail in one life.
_CALLS = 500


class UnsyncedLines(JsonLinesSink):
    """Keeps lines in memory until they are synced."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unsynced = bytearray()

    def _put(self, file: Any, pieces: Iterable[Any]) -> None:
        lines = b"".join(pieces)
        self._unsynced += lines
        self._written += len(lines)

    def _make_durable(self, file: Any) -> None:
        lines, written = self._unsynced, self._written
        self._written = written - len(lines)
        try:
            super()._put(file, (lines,))
        finally:
            self._written = written
        super()._make_durable(file)
        self._unsynced = bytearray()


class RejectingSink(Sink):
    """Always rejects the rows of some accounts, and passes the rest to another sink."""

    def __init__(self, inner: Sink) -> None:
        self._inner = inner

    async def open(self, context: SinkContext) -> Position | None:
        return await self._inner.open(context)

    async def write(self, batch: Batch) -> None:
        found = [change for part in batch.slices for change in part.changes if rejected(change)]
        kept = [
            replace(part, changes=[change for change in part.changes if not rejected(change)])
            for part in batch.slices
        ]
        await self._inner.write(Batch(tuple(kept)))
        if found:
            raise PermanentError("these accounts are not wanted", rejected=found)

    async def flush(self) -> None:
        await self._inner.flush()

    async def close(self) -> None:
        await self._inner.close()


def rejected(change: Any) -> bool:
    """Whether ``RejectingSink`` rejects a change."""
    if change.kind not in ("insert", "read", "update", "delete") or change.table != "accounts":
        return False
    row = change.new if change.new is not None else change.old
    return row is not None and row["id"] % 5 == 0


def delivery(
    name: str, options: dict[str, Any], plan: dict[str, Any], struck: Callable[[str], None]
) -> Delivery:
    """Make a sink with its options.

    :param struck: called with each fault of the sink.
    """
    sink = _MAKERS[options["type"]](name, options, plan)
    if "rejects" in options:
        sink = RejectingSink(sink)
    if "faulty" in options:
        chance = random.Random(options["faulty"] + os.getpid())
        faults = [_Told(_fault(chance), struck) for _ in range(_CALLS)]
        sink = FaultySink(sink, write=faults[: _CALLS // 2], flush=faults[_CALLS // 2 :])
    renames = plan["program"]["mixture"].get("renames", False)
    tables = [_pattern(table, renames=renames) for table in options.get("tables", ())]
    mask = [_pattern(column, renames=renames) for column in options.get("mask", ())]
    return Delivery(
        sink,
        selection=Selection(tables=tables, mask=mask, secret=_SECRET) if tables or mask else None,
        transform=every_other if options.get("transform") else None,
        schema_changes=options.get("schema_changes", False),
        concurrency=options.get("concurrency", 1),
        on_error="dead_letter" if "rejects" in options else "halt",
        dead_letters=Path(plan["folder"], letters(name)) if "rejects" in options else None,
        # Otherwise some sinks flush only once a minute.
        batches=batches(plan["program"]["pipeline"]),
    )


def _pattern(name: str, *, renames: bool) -> str:
    """Return the pattern of a table or column, which may begin with an exclamation mark.

    :param renames: whether it has to match all names of parents, in all of their schemas.
    """
    table, dot, column = name.removeprefix("!").partition(".")
    pattern = f"{SCHEMA}*.{table}*" if renames and table in PARENTS.values() else f"{SCHEMA}.{table}"
    return f"{'!' if name.startswith('!') else ''}{pattern}{dot}{column}"


def letters(name: str) -> str:
    """Return the name of a sink's folder of dead letters."""
    return f"{name}-letters"


def redelivered(name: str) -> str:
    """Return the name of the folder into which a sink's dead letters are replayed."""
    return f"{name}-redelivered"


def batches(pipeline: dict[str, Any]) -> BatchPolicy:
    """Return the batch policy of a program."""
    names = ("max_bytes", "flush_bytes", "flush_seconds")
    return BatchPolicy(**{name: pipeline[name] for name in names if name in pipeline})


def every_other(change: Any) -> Any:
    """Drop half of the rows of ``accounts``, and change the others."""
    if change.kind not in ("insert", "read", "update") or change.table != "accounts":
        return change
    if change.new["id"] % 2:
        return None
    return change.with_columns({"note": "changed"})


def _jsonl(name: str, options: dict[str, Any], plan: dict[str, Any]) -> Sink:
    prepared = options.get("prepared", False)
    sink = UnsyncedLines(
        Path(plan["folder"], name), rotate_bytes=options["rotate_bytes"], boundaries=prepared
    )
    sink.supports_prepared = prepared
    return sink


def _s3(name: str, options: dict[str, Any], plan: dict[str, Any]) -> Sink:
    from aiorepl_sinks.s3 import S3Sink

    folder = Path(plan["folder"], name)
    return S3Sink(f"file://{folder}", object_bytes=options["object_bytes"], compression="none")


def _postgres(name: str, options: dict[str, Any], plan: dict[str, Any]) -> Sink:
    from aiorepl_sinks.postgres import PostgresSink

    return PostgresSink(plan["target"], mode=options["mode"], transactions=options["transactions"])


def _webhook(name: str, options: dict[str, Any], plan: dict[str, Any]) -> Sink:
    from aiorepl_sinks.webhook import WebhookSink

    url = f"http://127.0.0.1:{plan['receiver']}/{name}"
    return WebhookSink(url, body="ndjson", request_events=options["request_events"], read_timeout=1.0)


def _redis(name: str, options: dict[str, Any], plan: dict[str, Any]) -> Sink:
    from aiorepl_sinks.redis import RedisSink

    return RedisSink(**plan["brokers"][name], timeout=2.0)


def _nats(name: str, options: dict[str, Any], plan: dict[str, Any]) -> Sink:
    from aiorepl_sinks.nats import NatsSink

    return NatsSink(**plan["brokers"][name])


def _kafka(name: str, options: dict[str, Any], plan: dict[str, Any]) -> Sink:
    from aiorepl_sinks.kafka import KafkaSink

    return KafkaSink(**plan["brokers"][name])


_MAKERS = {
    "jsonl": _jsonl,
    "s3": _s3,
    "postgres": _postgres,
    "webhook": _webhook,
    "redis": _redis,
    "nats": _nats,
    "kafka": _kafka,
}


class _Told:
    """A fault that reports itself before it strikes."""

    def __init__(self, fault: Any, struck: Callable[[str], None]) -> None:
        self._fault = fault
        self._struck = struck

    async def strike(self, call: Callable[[], Any]) -> Any:
        if self._fault is None:
            return await call()
        self._struck(f"sink: {type(self._fault).__name__}")
        return await self._fault.strike(call)


def _fault(chance: random.Random) -> Any:
    error = TransientError("not now")
    return chance.choices([None, Reject(error), FailAfterWrite(error), Slow(0.05)], [70, 14, 8, 8])[0]
