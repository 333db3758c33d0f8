"""The process under test: runs a program's pipeline. ``rounds`` kills, freezes and disconnects it.

A kill loses the unsynced lines of its ``jsonl`` sinks, as a machine failure would.

The plan has the program and the faults of this life. The process ends in an orderly way when its pipe is closed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import resource
import sys
import threading
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mirrored
from destinations import batches, delivery
from disk import Disk
from hooks import Arms, install, task_factory
from sabotage import SABOTAGES
from watch import CURSOR

from aiorepl import Pipeline, RetryPolicy, SnapshotOptions, Source, connect
from aiorepl.durable import storage_error
from aiorepl.errors import AioreplError
from aiorepl.formats import named
from aiorepl.journal import Cursors, JournalReader, retention
from aiorepl.lsn import ZERO
from aiorepl.pipeline import journal_readers, journal_upkeep
from aiorepl.snapshot.initial import exported
from aiorepl.source.feedback import schedule, status_updates
from aiorepl.storage.objects import client
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.opening import Location
from aiorepl.transactions import in_progress
from aiorepl.wire import opening, session_settings, sql

# Small enough for passes and merges within a process that lives for a second.
LIMITS = {
    "publish_after": 1.0,
    "keep_replaced": 0.5,
    "least_bytes": 20_000,
    "most_bytes": 200_000,
    "most_pending": 4,
    "listed": 3,
}

# A loop over ``aiorepl.connect`` writes the lines of a transaction in pieces of about this size.
_LINES_BYTES = 1_000_000


def run(plan: Path, stderr: Path, stop: Connection) -> None:
    """Run as the process under test."""
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    told = json.loads(plan.read_text())
    power = any(arm["action"] == "power" for arm in told["arms"])
    disk = Disk(Path(told["folder"], "shadow"), os.getpid()) if power else None
    arms = Arms(told["arms"], told["fired"], disk)
    if told["sabotage"]:
        SABOTAGES[told["sabotage"]]()
    prepare(told)
    if told["program"]["pipeline"].get("journal"):
        check_confirmations(location(told, direct=True), Path(told["early"]), arms)
    install(arms)
    loop = asyncio.new_event_loop()
    if (factory := task_factory(arms)) is not None:
        loop.set_task_factory(factory)
    before = memory("VmRSS")
    consumer = make_consumer(told, arms)
    code = loop.run_until_complete(main(consumer, told, arms, stop))
    started = consumer._fan_out.started.is_set() if isinstance(consumer, Pipeline) else consumer.started
    with open(Path(told["folder"], "end.json"), "w") as file:  # noqa: PTH123 - without faults
        json.dump({"started": started, "bytes": memory("VmHWM") - before}, file)
    sys.stderr.flush()
    os._exit(code)


def prepare(plan: dict[str, Any]) -> None:
    """Make the folders that a user would make, and change constants, before any fault."""
    program, folder = plan["program"], Path(plan["folder"])
    made = [name for name, options in program["sinks"].items() if options["type"] == "s3"]
    if program["pipeline"].get("connect"):
        made.append("sink0")
    for name in ("spill", *made):
        Path(folder, name).mkdir(exist_ok=True)
    schedule._MIN_INTERVAL = 0.02
    notice_dropped_packets()
    client.REQUEST_SECONDS, client.RETRIES, client.RETRY_SECONDS = 1, 2, 1
    retention._MIN_PAUSE = 0.1
    if program["pipeline"].get("retention"):
        names = {CURSOR, mirrored.CURSOR} if program["mirror"] else {CURSOR}
        watched(location(plan, direct=True), names)
    if program["pipeline"].get("compact"):
        compact_within(location(plan), folder / "compaction", plan["limits"])
    limit(plan["limits"])


def notice_dropped_packets() -> None:
    """Let both ends of a connection whose packets are dropped notice that within about three seconds."""
    quick = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 3000}
    opening._KEEPALIVE, opening._ONE_HOST_SECONDS = quick, 5.0
    session_settings._KEEPALIVE = {
        "tcp_keepalives_idle": "1",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "2",
    }
    sql.GIVE_UP_CLIENT = exported.GIVE_UP_CLIENT = session_settings.GIVE_UP_CLIENT.replace("60000", "3000")


def limit(limits: dict[str, int]) -> None:
    """Limit this process.

    :param limits: ``files``, the number of descriptors beside those that are open now, and ``memory``, the bytes of address
        space beside those that are in use now.
    """
    if "files" in limits:
        most = len(list(Path("/proc/self/fd").iterdir())) + limits["files"]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if "memory" in limits:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + limits["memory"], used + limits["memory"]))


def memory(kind: str) -> int:
    """Return bytes of memory of this process: ``VmRSS``, now, or ``VmHWM``, at most."""
    with open("/proc/self/status") as file:  # noqa: PTH123 - without faults
        (line,) = (line for line in file if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024


def record(error: BaseException, path: Path) -> None:
    """Append a traceback to a file, with a call without faults."""
    with open(path, "a") as file:  # noqa: PTH123
        traceback.print_exception(error, file=file)


def location(plan: dict[str, Any], *, direct: bool = False) -> Location:
    """Return the location of the journal.

    :param direct: without the faults of an object store.
    """
    if plan["store"] is None:
        return Path(plan["journal"])
    return ObjectStore(**plan["store"]["direct" if direct else "faulty"])


def check_confirmations(journal: Location, early: Path, arms: Arms) -> None:
    """Compare each confirmed LSN with the journal on disk. Polling from outside misses states that last a few milliseconds.

    :param early: the file for positions that are confirmed too early.
    :param arms: strike nothing meanwhile.
    """
    report, reader = status_updates.StatusUpdates.report, JournalReader(journal)

    def checked(updates: Any) -> None:
        ledger, active = updates._ledger, arms.active
        confirmed, arms.active = ledger.confirm(), False
        try:
            found = reader.position()
            durable = max(ZERO if found is None else found.lsn, ledger._slot_lsn)
            if confirmed > durable:
                with open(early, "a") as file:  # noqa: PTH123
                    file.write(f"{confirmed} is confirmed, and the journal on disk ends at {durable}\n")
        except (AioreplError, OSError):
            pass  # there are few descriptors
        finally:
            arms.active = active
        report(updates)

    status_updates.StatusUpdates.report = checked


def watched(journal: Location, names: set[str]) -> None:
    """Prune the journal only once the cursors of its other readers protect the segments that they have not read."""
    keep_pruned, cursors = journal_upkeep.keep_pruned, Cursors(journal)

    async def keep(store: Any, limits: Any, lock: Any) -> None:
        while not names <= {*await asyncio.to_thread(cursors.names)}:
            await asyncio.sleep(0.02)
        await keep_pruned(store, limits, lock)

    journal_upkeep.keep_pruned = keep


def compact_within(journal: Location, told: Path, limits: dict[str, int]) -> None:
    """Run compaction in a thread of this process, where faults strike it, too.

    :param told: the file for errors that are not aiorepl's.
    :param limits: the limits of the process; without memory, any error may come.
    """
    # Imports pyarrow.
    from aiorepl.history import beside, opening, planning
    from aiorepl.history.compaction import Pace

    async def run(first: bytes) -> int:
        stopped = threading.Event()
        try:
            while await asyncio.to_thread(JournalReader(journal).recorded_position) is None:
                await asyncio.sleep(0.05)
            compaction = opening.open_compaction(
                journal, limits=planning.Limits(**LIMITS), pace=Pace(50_000, 0.1)
            )
            await asyncio.to_thread(compaction.follow, stopped, 0.05)
        except (AioreplError, MemoryError) as error:
            sys.stderr.write(f"compaction: {type(error).__name__}: {error}\n")
        except Exception as error:  # noqa: BLE001 - it is a violation
            if "memory" not in limits:
                record(error, told)
        finally:
            stopped.set()
        return 1

    beside._run = run
    beside._FIRST_PAUSE = 0.05


async def main(consumer: Pipeline | Loop, plan: dict[str, Any], arms: Arms, stop: Connection) -> int:
    """Run until the pipe or the pipeline ends, and return the exit code."""
    asyncio.get_running_loop().add_reader(stop.fileno(), consumer.stop)
    task = asyncio.create_task(consumer.run())
    arms.cancel, arms.active = task.cancel, True
    while not (await asyncio.wait({task}, timeout=0.05))[0]:
        tell(consumer, Path(plan["folder"], "told.json"))
    asyncio.get_running_loop().remove_reader(stop.fileno())
    if task.cancelled():
        return 0
    if (error := task.exception()) is not None:
        record(error, Path(plan["folder"], "tracebacks"))
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        return 1
    return 0


def tell(consumer: Pipeline | Loop, path: Path) -> None:
    """Record whether the stream has started and the slot will stay, and the state of each table's snapshot."""
    if isinstance(consumer, Pipeline):
        snapshot = consumer.statistics().snapshot
        told = {
            "started": consumer._fan_out.started.is_set(),
            "stays": stays(consumer),
            "tables": {} if snapshot is None else {table.table: table.state for table in snapshot.tables},
        }
    else:
        told = {"started": consumer.started}
    # A call without faults; the reader tries again if it sees a part.
    with open(path, "w") as file:  # noqa: PTH123
        file.write(json.dumps(told))


def stays(pipeline: Pipeline) -> bool:
    """Whether the slot will stay. It is created again if a start fails before rows of the snapshot are durable."""
    fan_out = pipeline._fan_out
    if fan_out.ledger is None or not fan_out.started.is_set():
        return False
    start = fan_out._snapshot.start
    durable = start is not None and fan_out.ledger.flushed > start
    return durable or (pipeline._capture.created is None and not fan_out._undelivered)


def make_consumer(plan: dict[str, Any], arms: Arms) -> Pipeline | Loop:
    """Make the program's pipeline, or its loop over ``aiorepl.connect``."""
    program, folder = plan["program"], Path(plan["folder"])
    given = dict(program["source"])
    if given.pop("transaction_buffer_bytes", None):
        # Everything spills, from the first byte.
        given["transaction_buffer_bytes"] = 100_000
        # The index of the spooled chunks and the descriptions of tables of a large transaction take more than that.
        in_progress._MINIMUM = 1_000_000 if program["mixture"].get("rows") else 100_000
        given["spill_dir"] = folder / "spill"
    source = Source(plan["dsn"], slot=plan["slot"], publication="verify", **given)
    again = RetryPolicy(timeout=None, wait_initial=0.02, wait_max=0.2)
    options = {**program["pipeline"], **plan["options"]}
    create_slot = options.pop("create_slot", options.get("snapshot", False))
    if options.pop("connect", False):
        return Loop(source, again, folder / "sink0")
    sizes = {name: options.pop(name) for name in ("segment_bytes", "block_bytes") if name in options}
    if sizes:
        journal_readers.JournalSink = functools.partial(journal_readers.JournalSink, **sizes)
    for name in ("max_bytes", "flush_bytes", "flush_seconds"):
        options.pop(name, None)
    options.pop("store", None)
    journal = location(plan) if options.pop("journal", False) else None
    chunks = {"chunk_bytes": 8192, "connections": options.pop("connections", 1)}
    if "lock_timeout" in options:
        chunks["lock_timeout"] = options.pop("lock_timeout")
    return Pipeline(
        replace(source, create_slot=create_slot),
        {name: delivery(name, its, plan, arms.note) for name, its in program["sinks"].items()},
        journal=journal,
        batches=batches(program["pipeline"]),
        reconnect=again,
        retry=again,
        snapshot=SnapshotOptions(**chunks) if options.pop("snapshot", False) else False,
        state_dir=None if journal else folder / "state",
        **options,
    )


class Loop:
    """A loop over ``aiorepl.connect`` that writes changes to a file, and acknowledges them once they are synced."""

    def __init__(self, source: Source, again: RetryPolicy, folder: Path) -> None:
        self._source = source
        self._again = again
        self._folder = folder
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.started = False

    async def run(self) -> None:
        """Read until ``stop``."""
        self._task = asyncio.current_task()
        form = named("native")
        # Names sort in the order of the runs.
        path = self._folder / f"{len(list(self._folder.iterdir())):016}.jsonl"
        try:
            with path.open("wb", buffering=0) as file:
                async with connect(self._source, reconnect=self._again) as stream:
                    self.started = True
                    async for transaction in stream:
                        lines = bytearray()
                        async for change in transaction:
                            lines += form.event(change) + b"\n"
                            if len(lines) > _LINES_BYTES:
                                file.write(lines)
                                lines.clear()
                        file.write(lines)
                        os.fsync(file.fileno())
                        await stream.ack(transaction)
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        except OSError as error:
            raise storage_error(error, str(path)) from error

    def stop(self) -> None:
        """Stop ``run``."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
