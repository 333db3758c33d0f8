"""Bugs that the suite must find. ``--sabotage NAME`` puts one into the process under test, in programs in which it can have an effect.

docs/faults.md lists which of them the suite finds, and how soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from mirrored import OLDER
from program import QUIET, RENAMED, Program


def no_fsync() -> None:
    """Files are never synced, so a power failure loses confirmed data. Only the action ``power`` can show this."""
    from aiorepl import durable

    durable.fsync = lambda descriptor: None


def confirm_accepted() -> None:
    """The slot is confirmed up to the accepted position, before the sinks have flushed."""
    from aiorepl.source.ledger import Ledger

    Ledger.confirm = lambda ledger: ledger.accepted


def lose_a_change() -> None:
    """Every hundredth row of a sink is lost."""
    from destinations import UnsyncedLines

    write, number = UnsyncedLines._put, count(1)

    def put(self: Any, file: Any, pieces: Iterable[Any]) -> None:
        lines = b"".join(pieces).splitlines(keepends=True)
        write(self, file, [line for line in lines if next(number) % 100])

    UnsyncedLines._put = put


def cursor_ahead() -> None:
    """A sink's cursor in the journal moves before its data is durable."""
    from aiorepl.delivery.worker import SinkWorker

    accept = SinkWorker._accept

    async def ahead(self: Any, batch: Any) -> None:
        await accept(self, batch)
        if batch.end_lsn is not None:
            await self._progress.durable(batch.end_lsn)

    SinkWorker._accept = ahead


def forget_savepoints() -> None:
    """Streamed changes of a savepoint that was rolled back are delivered."""
    from aiorepl.transactions.in_progress import InProgress

    abort = InProgress.stream_abort

    def whole(self: Any, message: Any) -> None:
        if message.xid == message.subxid:
            abort(self, message)

    InProgress.stream_abort = whole


def skip_prepared() -> None:
    """A flush during a large transaction skips data that was accepted before it, such as a prepared transaction."""
    from aiorepl.journal.writer import JournalWriter

    def write(self: Any, slices: Any) -> None:
        whole = next((count for count in range(len(slices), 0, -1) if slices[count - 1].last), 0)
        for part in slices[:whole]:
            self._add(part)
        if whole < len(slices) and self._builder is not None and self._builder.open is None:
            self._seal()
        for part in slices[whole:]:
            self._add(part)

    JournalWriter._write_plain = write


def lose_dead_letters() -> None:
    """Every fifth dead letter is lost."""
    from aiorepl.delivery.dead_letters import DeadLetters

    write, number = DeadLetters._write, count(1)

    def some(self: Any, *arguments: Any) -> None:
        if next(number) % 5:
            write(self, *arguments)

    DeadLetters._write = some


def prune_unread() -> None:
    """Segments are deleted as if all consumers had read everything."""
    from aiorepl.journal import retention

    new_start = retention._new_start

    class Read:
        def __init__(self, end: Any) -> None:
            self._end = end

        def names(self) -> list[str]:
            return ["everybody"]

        def get(self, name: str) -> Any:
            return self._end

    def unread(chain: Any, cursors: Any, *limits: Any) -> Any:
        return new_start(chain, Read(chain.end), *limits)

    retention._new_start = unread


def compact_less() -> None:
    """Compaction leaves out the first row of each table in every third pass."""
    from aiorepl.history.buffers import Buffers

    take, number = Buffers._take, count(1)

    def less(self: Any, buffer: Any) -> Any:
        batches = take(self, buffer)
        if next(number) % 3 == 0:
            yield next(batches).slice(1)
        yield from batches

    Buffers._take = less


def forget_commits_of_prepared() -> None:
    """A sink that gets transactions at their PREPARE loses their rows."""
    from destinations import UnsyncedLines

    write = UnsyncedLines.write

    async def lossy(self: Any, batch: Any) -> None:
        parts = batch.slices
        if self.supports_prepared and all(part.transaction and part.transaction.prepared for part in parts):
            return
        await write(self, batch)

    UnsyncedLines.write = lossy


def fence_nobody() -> None:
    """The writer of a journal in an object store replaces whatever is there, also the state of a later writer."""
    from aiorepl.storage.remote import RemoteStore

    def replace(self: Any, name: str, data: bytes, version: str | None) -> str:
        self.write(name, data)
        return str(self.load(name)[1])

    RemoteStore.replace = replace


def forget_histories() -> None:
    """Positions are compared neither with the timelines of a promoted server nor with its last transaction. Either check is enough."""
    from aiorepl.source import continuity

    continuity.divergence = lambda position, timelines: None
    continuity.Continuity._proven = lambda claims, position: True


def resume_late() -> None:
    """A transaction that was received in part goes on one change too late after a reconnect."""
    from aiorepl.transactions import replay

    count_before = replay._count_before
    replay._count_before = lambda changes, ordinal: count_before(changes, ordinal + bool(ordinal))


def keep_spilled_savepoints() -> None:
    """Changes of a savepoint that was rolled back are delivered if they were in the spool."""
    from aiorepl.transactions.in_progress import InProgress

    abort = InProgress.stream_abort

    def in_memory(self: Any, message: Any) -> None:
        pending = self._streams.get(message.xid)
        if message.xid == message.subxid or pending is None or not pending.chunks:
            abort(self, message)

    InProgress.stream_abort = in_memory


def letters_later() -> None:
    """A dead letter is written when the next one comes, so the sink's cursor is stored before."""
    from aiorepl.delivery.dead_letters import DeadLetters

    write = DeadLetters._write
    waiting: list[Any] = []

    def later(self: Any, *arguments: Any) -> None:
        for one in waiting:
            write(*one)
        waiting[:] = [(self, *arguments)]

    DeadLetters._write = later


def prune_one_more() -> None:
    """Retention deletes one segment too many."""
    from aiorepl.journal import retention

    new_start = retention._new_start

    def more(chain: Any, *arguments: Any) -> Any:
        lsn = new_start(chain, *arguments)
        ends = [
            one.last_end_lsn
            for one in chain.walk()
            if one.last_part and (lsn is None or one.last_end_lsn > lsn)
        ]
        return ends[0] if len(ends) > 1 else lsn

    retention._new_start = more


def hold_once() -> None:
    """A gid that is prepared again before its first transaction is durable has no hold of its own."""
    from aiorepl.source.ledger import Ledger

    hold = Ledger.hold

    def once(self: Any, gid: str, prepared: Any) -> None:
        if all(name != gid for name, _ in self._holds):
            hold(self, gid, prepared)

    Ledger.hold = once


def judge_early() -> None:
    """A chunk of a snapshot is merged as if the last transaction before its high watermark came after it."""
    from aiorepl.snapshot.merging.window import Window

    judge = Window.judge

    def early(self: Any, *arguments: Any) -> Any:
        committed = self._committed
        self._committed = dict(list(committed.items())[:-1])
        try:
            return judge(self, *arguments)
        finally:
            self._committed = committed

    Window.judge = early


def compact_fewer_blocks() -> None:
    """Compaction leaves out the last block of a transaction that has several blocks in a segment."""
    from aiorepl.history import change_collector

    blocks = change_collector.blocks

    def fewer(*arguments: Any) -> Any:
        read = list(blocks(*arguments))
        following = [block.continuation for _, block, _, _ in read[1:]] + [None]
        for one, after in zip(read, following, strict=True):
            if one[1].continuation is None or after is not None:
                yield one

    change_collector.blocks = fewer


def trust_waiting_commits() -> None:
    """A ``postgres`` sink treats a position as durable that the target's synchronous standby may lack."""
    from aiorepl_sinks.postgres.state import TargetState

    open_state = TargetState.open

    async def trusting(self: Any) -> Any:
        await self._connection.execute("SET synchronous_commit = 'local'")
        found = await open_state(self)
        await self._connection.execute("SET synchronous_commit = 'on'")
        return found

    TargetState.open = trusting


def forget_parents() -> None:
    """A selection goes on with its first judgement of a table, whichever parents the table gets later."""
    from aiorepl.transforms.filter import StreamFilter

    create = StreamFilter._create

    def first(self: Any, relation: Any) -> Any:
        kept = self.__dict__.setdefault("_first", {})
        key = (relation.oid, relation.schema, relation.name, relation.columns)
        if key not in kept:
            kept[key] = create(self, relation)
        return kept[key]

    StreamFilter._create = first


def _strikes(kind: str, least: float = 0.0) -> Callable[[Program], bool]:
    """Whether a fault from outside is in a program, with at least this size."""
    return lambda program: any(
        kind == strike and size >= least for run in program.runs for strike, _, size in run.strikes
    )


def _has(option: str) -> Callable[[Program], bool]:
    """Whether a sink has an option."""
    return lambda program: any(option in sink for sink in program.sinks.values())


def _writes_to(kind: str) -> Callable[[Program], bool]:
    """Whether a program has a sink of this kind."""
    return lambda program: any(kind == sink["type"] for sink in program.sinks.values())


def _writes_lines(program: Program) -> bool:
    return not program.pipeline.get("connect") and any(
        sink["type"] == "jsonl" for sink in program.sinks.values()
    )


def messages_as_sent() -> None:
    """Logical messages keep the place among rows that the server gave them, which another connection may change."""
    from aiorepl.pgoutput.message_order import MessageOrder

    MessageOrder.feed = lambda order, frames: list(frames)


def keep_doubtful_messages() -> None:
    """Logical messages of a streamed transaction are delivered although their savepoint may have been rolled back."""
    from aiorepl.transactions.assembler import Assembler

    Assembler._take_stream = lambda assembler, message, name: assembler.in_progress.take_stream(
        message.xid, name
    )


def unmask_old_rows() -> None:
    """The old rows of masked columns come as they are."""
    from aiorepl.pgoutput import messages as m
    from aiorepl.transforms.masking import Rewriting

    rewrite = Rewriting._message

    def leaky(self: Any, message: Any, types: Any) -> Any:
        made, payload = rewrite(self, message, types), message.payload
        if isinstance(message, m.Delete):
            return m.Delete(self.target, message.old_kind, message.old_at, payload, message.xid)
        if not isinstance(message, m.Update) or not message.old_kind:
            return made
        head = payload[: message.new_at]
        return m.Update(
            self.target,
            message.old_kind,
            message.old_at,
            len(head),
            head + made.payload[made.new_at :],
            message.xid,
        )

    Rewriting._message = leaky


def release_all_holds() -> None:
    """The outcome of one prepared transaction ends the holds of all."""
    from aiorepl.source.ledger import Ledger

    def release(self: Any, gid: str, end_lsn: Any) -> None:
        for key, (limit, _) in list(self._holds.items()):
            if key[1] < end_lsn:
                self._holds[key] = limit, end_lsn
        self._advance()

    Ledger.release = release


def trust_key_constants() -> None:
    """The bounds of key ranges are constants of the key's types, which call the CHECK of a domain within an array."""
    from dataclasses import replace

    from aiorepl.snapshot import planning

    ranges = planning._ranges

    async def trusting(connection: Any, table: Any, *arguments: Any, **options: Any) -> Any:
        return await ranges(connection, replace(table, comparable=True), *arguments, **options)

    planning._ranges = trusting


def wait_behind_locks() -> None:
    """A chunk of an initial snapshot waits behind a session that waits for the snapshot's own lock, without a limit.

    It shows only if such sessions may wait without a limit, too: otherwise the snapshot ends for them.
    """
    from aiorepl.snapshot import chunk_reader

    chunk_reader._LOCK_SECONDS = 0.0


def acknowledge_early() -> None:
    """A ``kafka`` sink does not wait for the brokers' acknowledgement of the last batch."""
    import asyncio

    from aiorepl_sinks.kafka.sink import KafkaSink

    async def early(self: Any, batch: Any, end_lsn: Any) -> None:
        earlier = self._delivery
        if earlier is not None:
            await earlier
        self._batch, self._delivery = batch, asyncio.create_task(self._deliver(batch, end_lsn))

    KafkaSink._attempt = early


def type_by_first_row() -> None:
    """A slice is not cut where a composite type was altered, so a journal describes the type of its first row only."""
    from dataclasses import replace

    from aiorepl.transactions import retyping

    def whole(part: Any, chosen: Any) -> Any:
        changes = [
            change
            for one, layouts in zip(part.changes, chosen, strict=True)
            for change in retyping._by([one], layouts)
        ]
        return [replace(part, changes=changes)]

    retyping._cut = whole


def forget_masks() -> None:
    """A start does not know which columns were masked before."""
    from aiorepl.transforms.memory import SelectionMemory

    SelectionMemory.load = lambda memory, tables: None


def announce_late() -> None:
    """A schema change comes after the first row that has it."""
    from dataclasses import replace

    from aiorepl.transactions.changes import RowChange
    from aiorepl.transactions.schema_changes import SchemaTracker

    def announced(self: Any, part: Any) -> Any:
        changes: list[Any] = []
        for change in part.changes:
            changes.append(change)
            if isinstance(change, RowChange) and (found := self.observe(change)) is not None:
                changes.append(found)
        return part if len(changes) == len(part.changes) else replace(part, changes=changes)

    SchemaTracker.announced = announced


def announce_first_only() -> None:
    """Only the first description of a table after a start is announced."""
    from aiorepl.transactions.schema_changes import SchemaTracker

    observe = SchemaTracker.observe

    def first(self: Any, change: Any) -> Any:
        found = observe(self, change)
        return found if found is None or found.first else None

    SchemaTracker.observe = first


def round_statistics() -> None:
    """A Spark mirror skips files by rounded minima and maxima. ``tests/spark/mirror_process`` has the bug."""


def skip_batches_by_number() -> None:
    """A Spark mirror skips batches by their numbers only. ``tests/spark/mirror_process`` has the bug."""


def _holds(program: Program) -> bool:
    """Whether prepared transactions are kept in the process until they are decided."""
    return (
        not program.pipeline["journal"]
        and bool(program.source.get("two_phase"))
        and not _has("prepared")(program)
    )


def _masks_old_rows(program: Program) -> bool:
    return any("notes.doc" in sink.get("mask", ()) for sink in program.sinks.values())


def _announces(program: Program) -> bool:
    return program.mixture["schema_changes"] and any(
        sink.get("schema_changes")
        and not sink.get("prepared")
        and "accounts" in sink.get("tables", ["accounts"])
        for sink in program.sinks.values()
    )


def _plans_again(program: Program) -> bool:
    """Whether a mirror plans batches again with other ends, after an older copy of its state."""
    lives = program.mirror.get("lives", ())
    limits = [life.get("max_bytes") for life in lives] + [program.mirror.get("max_bytes")]
    copied = False
    for number, life in enumerate(lives):
        if copied and life["loss"] == OLDER and limits[number] != limits[number + 1]:
            return True
        copied |= life["loss"] != OLDER
    return False


# Whether a bug can have an effect in a program; the others are not run.
SHOWS: dict[str, Callable[[Program], bool]] = {
    "no fsync": lambda program: program.power,
    "confirm accepted": lambda program: not program.pipeline.get("connect"),
    "lose a change": _writes_lines,
    "cursor ahead": lambda program: bool(program.pipeline["journal"]) and _writes_lines(program),
    "forget savepoints": lambda program: program.mixture["streamed"] > 0,
    "skip prepared": lambda program: bool(
        program.pipeline["journal"] and (program.source.get("two_phase") or program.pipeline.get("snapshot"))
    ),
    "lose dead letters": _has("rejects"),
    "prune unread": lambda program: "retention" in program.pipeline,
    "compact less": lambda program: "compact" in program.pipeline,
    "forget commits of prepared": _has("prepared"),
    "forget mirrored rows": lambda program: bool(program.mirror),
    "fence nobody": lambda program: "store" in program.pipeline and _strikes("second pipeline")(program),
    # Without a failover slot, the promoted server has no slot at all.
    "forget histories": lambda program: "late standby" in program.aftermath and "failover" in program.source,
    "resume late": lambda program: True,
    "keep spilled savepoints": lambda program: program.mixture["streamed"] > 0,
    "letters later": _has("rejects"),
    "prune one more": lambda program: "retention" in program.pipeline,
    "hold once": lambda program: _holds(program) and bool(program.mixture.get("pairs")),
    "judge early": lambda program: bool(program.pipeline.get("snapshot")) or _strikes("resnapshot")(program),
    # The standby gets nothing before it is promoted.
    "trust waiting commits": lambda program: (
        program.target_standby == "synchronous" and _strikes("promote the target", 0.3)(program)
    ),
    "compact fewer blocks": lambda program: "compact" in program.pipeline,
    "messages as sent": lambda program: bool(program.mixture.get("notices")),
    "keep doubtful messages": lambda program: (
        bool(program.mixture.get("notices")) and program.mixture["streamed"] > 0
    ),
    "forget parents": lambda program: (
        QUIET in program.runs
        and any(
            "tree.secret" in sink.get("mask", ()) or {"tree", "!tree"} & {*sink.get("tables", ())}
            for sink in program.sinks.values()
        )
    ),
    "unmask old rows": _masks_old_rows,
    "release all holds": lambda program: _holds(program) and bool(program.mixture.get("pairs")),
    "trust key constants": lambda program: bool(
        program.mixture.get("traps") and program.publication.get("roots") and program.pipeline.get("snapshot")
    ),
    "wait behind locks": lambda program: (
        bool(program.mixture.get("early")) and program.pipeline.get("lock_timeout", 0) is None
    ),
    "acknowledge early": _writes_to("kafka"),
    # After a crash, some values are unknown anyway.
    "type by first row": lambda program: (
        bool(program.mixture.get("composites") and program.pipeline.get("compact"))
        and not _strikes("crash")(program)
        and not program.promotes
    ),
    "forget masks": lambda program: RENAMED in program.aftermath,
    "announce late": _announces,
    "announce first only": _announces,
    # Only Delta tables have such statistics.
    "round statistics": lambda program: program.mirror.get("lake") == "delta",
    "skip batches by number": _plans_again,
}


def forget_mirrored_rows() -> None:
    """A Spark mirror loses the last row of each merge. ``tests/spark/mirror_process`` has the bug."""


SABOTAGES: dict[str, Callable[[], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        no_fsync,
        confirm_accepted,
        lose_a_change,
        cursor_ahead,
        forget_savepoints,
        skip_prepared,
        lose_dead_letters,
        prune_unread,
        compact_less,
        forget_commits_of_prepared,
        forget_mirrored_rows,
        fence_nobody,
        forget_histories,
        resume_late,
        keep_spilled_savepoints,
        letters_later,
        prune_one_more,
        hold_once,
        judge_early,
        compact_fewer_blocks,
        trust_waiting_commits,
        messages_as_sent,
        keep_doubtful_messages,
        forget_parents,
        unmask_old_rows,
        release_all_holds,
        trust_key_constants,
        wait_behind_locks,
        acknowledge_early,
        type_by_first_row,
        forget_masks,
        announce_late,
        announce_first_only,
        round_statistics,
        skip_batches_by_number,
    )
}
OF_MIRRORS = ("forget mirrored rows", "round statistics", "skip batches by number")
"""Bugs of a mirror's process, not of the process under test."""
