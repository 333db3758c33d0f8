"""Judges a round: compares the logs of all consumers with the history, and the files on disk with the logs."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
from destinations import letters, redelivered
from mirrored import MirrorLives, operations
from places import misread
from program import Program
from report import Outcome
from strikes import PROMOTE
from watch import FolderWatch, TableWatch, Watch

from aiorepl import LSN, DeadLetters, Delivery
from aiorepl.delivery.redelivery import redeliver
from aiorepl.journal.verification import problems
from aiorepl.storage.opening import Location, open_store
from aiorepl.storage.store import Store
from aiorepl.verify import (
    Delivered,
    History,
    Operation,
    Promise,
    Verdict,
    tables,
    verify,
)
from aiorepl.verify.tables import SCHEMA
from aiorepl_sinks.jsonl import JsonLinesSink


class Judge:
    """Adds what it finds to an outcome.

    :param folder: of the round.
    :param journal: where its journal is.
    :param target: the DSN of the target of a ``postgres`` sink.
    :param watches: the logs.
    :param mirror: the Spark mirror, if there is one.
    """

    def __init__(
        self,
        program: Program,
        folder: Path,
        journal: Location,
        target: str,
        watches: dict[str, Watch],
        mirror: MirrorLives | None,
        outcome: Outcome,
    ) -> None:
        self._journal = journal
        self._program = program
        self._mirror = mirror
        self._folder = folder
        self._target = target
        self._watches = watches
        self._outcome = outcome

    async def judge(self, history: History) -> None:
        """Judge everything, once all consumers have caught up with the history and no process runs."""
        history = self._program.published.history(history)
        assert history.final is not None
        for name, options in self._program.sinks.items():
            watch = self._watches[name]
            if isinstance(watch, TableWatch):
                self._outcome.violations += [f"{name}: {text}" for text in watch.violations]
                await self._compare_target(name, history)
                continue
            promise = replace(promised(options, self._program), defaults=history.defaults)
            self._add(name, watch, verify(history, watch.log, promise, final=history.final))
            if "rejects" in options:
                await self._judge_letters(name, history, promise)
        if self._program.pipeline["journal"]:
            await self._judge_journal(history)
        if self._mirror is not None:
            found = await asyncio.to_thread(self._mirror.compare, history, self._watches["the journal"].log)
            self._outcome.violations += [f"the mirror: {problem}" for problem in found]

    def _add(self, name: str, watch: Watch, verdict: Verdict) -> None:
        self._outcome.violations += [f"{name}: {text}" for text in (*watch.violations, *verdict.violations)]
        self._outcome.transactions += verdict.transactions
        self._outcome.changes += verdict.changes
        self._outcome.rows += verdict.rows
        self._outcome.duplicates += verdict.duplicates

    async def _judge_letters(self, name: str, history: History, promise: Promise) -> None:
        """Verify the dead letters, replay them, and compare the delivered changes."""
        watch, folder = self._watches[letters(name)], self._folder / letters(name)
        # Each transaction needs a place in the stream, so the sink's own rows of the ledger are added.
        ledger = [
            entry
            for entry in self._watches[name].log
            if isinstance(entry, Delivered) and entry.tables == ("ledger",)
        ]

        def expected(operation: Operation) -> Operation | None:
            if operation.table == "ledger":
                return operation
            return only_rejected(operation) if selects(self._program.sinks[name], operation) else None

        promise = replace(
            promise, expected=expected, repeats=True, order="key", notices=False, described=False
        )
        self._add(letters(name), watch, verify(history, [*ledger, *watch.log], promise, final=history.final))
        sink = JsonLinesSink(self._folder / redelivered(name))
        await redeliver(name, Delivery(sink), DeadLetters(folder))
        again = FolderWatch(lambda: None, self._folder / redelivered(name))
        again.look()
        wanted = {(*change.identity, change.kind) for change in watch.log if isinstance(change, Delivered)}
        found = {(*change.identity, change.kind) for change in again.log if isinstance(change, Delivered)}
        if found != wanted:
            self._outcome.violations.append(
                f"{name}: {len(wanted - found)} changes of dead letters were not delivered again, "
                f"{len(found - wanted)} came from nowhere"
            )
        if left := list(folder.glob("*.json")):
            self._outcome.violations.append(
                f"{name}: {len(left)} dead letters are left after they were delivered"
            )

    async def _judge_journal(self, history: History) -> None:
        watch, store = self._watches["the journal"], open_store(self._journal)
        promise = replace(promised({}, self._program), defaults=history.defaults)
        self._add("the journal", watch, verify(history, watch.log, promise, final=history.final))
        found = await asyncio.to_thread(list, problems(store))
        self._outcome.violations += [f"the journal: {problem}" for problem in found]
        early = self._folder / "early"
        if early.exists():
            self._outcome.violations += [f"the slot: {line}" for line in early.read_text().splitlines()]
        if self._program.pipeline.get("compact"):
            unclear = self._folder / "compaction"
            if unclear.exists():
                last = unclear.read_text().splitlines()[-1]
                self._outcome.violations.append(
                    f"compaction ended with an error that is not of aiorepl: {last}"
                )
            replayed = bool({"crash", PROMOTE} & self._outcome.faults.keys())
            self._outcome.violations += await asyncio.to_thread(uncompacted, store, watch, replayed=replayed)

    async def _compare_target(self, name: str, history: History) -> None:
        """Compare the target's tables with the source's; the sink's position may be after the last transaction only."""
        connection = await asyncpg.connect(self._target)
        there = self._program.published.tables(await tables.contents(connection), history)
        connection.terminate()
        final = history.final or {}
        for table, rows in final.items():
            if rows != there[table]:
                missing, invented = (
                    len(rows.keys() - there[table].keys()),
                    len(there[table].keys() - rows.keys()),
                )
                other = sum(rows[key] != there[table][key] for key in rows.keys() & there[table].keys())
                self._outcome.violations.append(
                    f"{name}: table {table} differs: {missing} rows are missing, {invented} are not in the source, {other} "
                    "have other values"
                )
            self._outcome.changes += len(rows)
        self._outcome.transactions += len(final["ledger"])


def uncompacted(store: Store, watch: Watch, *, replayed: bool) -> list[str]:
    """Compact the rest of a journal, and compare the history with what a reader of the journal has read.

    :param replayed: whether the server has replayed its WAL.
    """
    # Imported here, because they import pyarrow.
    import pyarrow.parquet as pq

    from aiorepl.history import end, files, opening, read_file, verification
    from aiorepl.history import tables as listed_tables

    opening.open_compaction(store).run()
    until = end(store) or LSN(0)
    wanted: dict[str, set[tuple[int, int, str]]] = {}
    for change in watch.log:
        if isinstance(change, Delivered) and change.kind != "message" and change.commit_lsn < until:
            for table in change.tables:
                rows = {(*change.identity, kind) for kind in operations(change)}
                wanted.setdefault(table, set()).update(rows)
    texts = {
        change.identity: change.new["place"]
        for change in watch.log
        if isinstance(change, Delivered) and change.tables == ("items",) and change.new is not None
    }
    violations = [f"the history: {problem}" for problem in verification.problems(store)]
    for schema, table in sorted({*listed_tables(store), *((SCHEMA, name) for name in wanted)}):
        listed, found = files(store, schema, table), list[tuple[int, int, str]]()
        for file in () if listed is None else listed.files:
            data = io.BytesIO(read_file(store, file))
            places = ["place", "_unrepresentable"] if table == "items" else []
            rows = pq.read_table(data, columns=["_commit_lsn", "_ordinal", "_op", *places]).to_pylist()
            found += [(row["_commit_lsn"], row["_ordinal"], row["_op"]) for row in rows]
            if places and (wrong := misread(rows, texts, replayed=replayed)):
                violations.append(f"the history of items has other places than the journal in {wrong} rows")
        there = wanted.get(table, set())
        lost, invented, twice = len(there - {*found}), len({*found} - there), len(found) - len({*found})
        if lost or invented or twice:
            violations.append(
                f"the history of {table} up to {until}: {lost} changes are missing, {invented} are not in the journal, "
                f"{twice} are there twice"
            )
    return violations


def promised(options: dict[str, Any], program: Program) -> Promise:
    """Return the guarantees of a sink with these options; without options, the journal's."""
    selected, transformed = options.get("tables"), options.get("transform")

    def expected(operation: Operation) -> Operation | None:
        if "rejects" in options and only_rejected(operation) is not None:
            return None
        if operation.kind != "message" and not selects(options, operation):
            return None
        if not transformed or operation.table != "accounts" or operation.new is None:
            return operation
        if operation.new["id"] % 2:
            return None
        return replace(operation, new={**operation.new, "note": "changed"})

    def optional(operation: Operation) -> bool:
        # A pipeline learns of the parents from the catalog, at some time after the change.
        family = tables.parent(operation.table)
        depends = selected is not None and bool({family, f"!{family}"} & {*selected})
        return depends and operation.table != family and not operation.parent

    masked: dict[str, set[str]] = {}
    for column in options.get("mask", ()):
        table, _, name = column.partition(".")
        masked.setdefault(table, set()).add(name.removesuffix("?"))
    # Records of several partitions have an order only by key.
    partitioned = options.get("partitions", 1) > 1
    return Promise(
        exactly_once=not options
        or options["type"] in ("s3", "redis", "nats")
        or options.get("exactly_once", False),
        repeats="faulty" in options or options.get("type") == "webhook",
        order="event key" if partitioned else "key" if options.get("concurrency", 1) > 1 else "commit",
        expected=expected,
        optional=optional,
        masked={table: frozenset(names) for table, names in masked.items()},
        snapshot=bool(program.pipeline.get("snapshot")),
        notices=program.mixture.get("notices", False),
        # A prepared transaction is described at its PREPARE, and its log has it at its commit.
        described=bool(options.get("schema_changes")) and not options.get("prepared") and not partitioned,
    )


def selects(options: dict[str, Any], operation: Operation) -> bool:
    """Whether a sink with these options selects the table of a change; exclusions select all others."""
    names, patterns = {operation.table, operation.parent}, {*options.get("tables", ())}
    if any(pattern.startswith("!") for pattern in patterns):
        return not {f"!{name}" for name in names} & patterns
    return not patterns or bool(names & patterns)


def only_rejected(operation: Operation) -> Operation | None:
    """Return the operations that ``RejectingSink`` rejects."""
    rejects = operation.table == "accounts" and operation.kind != "truncate" and operation.key[0] % 5 == 0
    return operation if rejects else None
