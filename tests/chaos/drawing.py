"""Draws programs from seeds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import mirrored
from aftermath import DAMAGES, REMEDIES
from broker import RESTARTED
from hooks import ERRORS
from program import QUIET, RENAMED, Program, Run
from strikes import BROKERS, KAFKA, KINDS, OUTAGE, PROMOTE, PROMOTE_TARGET, SECOND

VERSIONS = (13, 14, 15, 16, 17, 18, 19)
_PROTOCOL = {13: 1, 14: 2, 15: 3, 16: 4, 17: 4, 18: 4, 19: 4}
_CONFIRM = "name:status"


def draw(
    seed: int,
    *,
    versions: tuple[int, ...] = VERSIONS,
    brokers: tuple[str, ...] = (),
    short: bool = False,
) -> Program:
    """Draw the program of a seed.

    :param versions: the available server versions.
    :param brokers: the available kinds of brokers.
    :param short: start the process at most twice with faults, and write little.
    """
    chance = random.Random(seed)
    version = chance.choice(versions)
    # Other sinks write their files with functions that the disk does not record.
    power = chance.random() < 0.35
    source, pipeline = _source(chance, version), _pipeline(chance, version, power=power)
    paired = chance.random() < (0.5 if source.get("two_phase") else 0.2)
    if paired:
        _boundaries(chance, version, source, pipeline)
    promotion = ""
    if chance.random() < (0.06 if short else 0.12):
        promotion = _promotion(chance, version, source, pipeline)
    if pipeline.get("snapshot"):
        source.pop("interface", None)  # only a replication connection exports a snapshot
    if pipeline.get("connect"):
        sinks, power = {"sink0": {"type": "jsonl"}}, False
    else:
        sinks = {
            f"sink{number}": _sink(chance, brokers, power=power)
            for number in range(chance.choice([1, 1, 2, 3]))
        }
        # There is only one target.
        mirrors = [name for name, sink in sinks.items() if sink["type"] == "postgres"]
        # The target is on the same server, and would be promoted as well.
        for name in mirrors if promotion else mirrors[1:]:
            sinks[name] = {"type": "jsonl", "rotate_bytes": 2_000}
    for sink in sinks.values() if pipeline.get("snapshot") else ():
        if sink["type"] == "postgres":
            # An interrupted snapshot continues beside the stream, which then changes rows before they are read.
            sink["mode"] = "upsert"
    if (
        source.get("two_phase")
        and not pipeline["journal"]
        and not pipeline.get("connect")
        and chance.random() < (0.2 if paired else 0.6)
    ):
        # Delivered at PREPARE, if all sinks support that.
        sinks = {name: {"type": "jsonl", "prepared": True, "rotate_bytes": 100_000} for name in sinks}
    # The sink's target would have to be altered first.
    altered = all(sink["type"] != "postgres" for sink in sinks.values())
    keys = 600 if pipeline.get("snapshot") else chance.choice([8, 60, 60])
    mixture = {
        "keys": keys,
        "largest": chance.choice([50, 500, 2000]),
        "schema_changes": altered and chance.random() < 0.6,
        "schema_weight": chance.choice([1, 1, 1, 25]),
        "prepared": chance.random() < 0.8,
        "children": altered and chance.random() < 0.5,
        "drops": all("mask" not in sink and "tables" not in sink for sink in sinks.values()),
        "detaches": not any({"tree", "!tree"} & {*sink.get("tables", ())} for sink in sinks.values()),
        "streamed": chance.choice([0.1, 0.4]) if source.get("streaming") else 0.0,
    }
    if paired:
        mixture |= {"pairs": 0.8, "prepared": True}
    # Version 13 has no messages in its stream; the SQL interface exports no snapshot for tables without a key.
    signals = version >= 14 and source.get("interface") != "sql"
    named = _reached(source, pipeline, sinks, signals=signals)
    writes = {sink["type"] for sink in sinks.values()} & {*brokers}
    kinds = _kinds(pipeline, signals=signals) | (BROKERS if writes else {})
    # Kafka needs seconds to start again, in which no other fault can strike.
    kinds |= KAFKA | {RESTARTED: 1} if "kafka" in writes else {}
    lives = tuple(
        _run(chance, named, kinds, power=power, paired=paired)
        # Many lives, because the servers, the last life and the judgement take as long as several lives.
        for _ in range(chance.choice([1, 2] if short else [2, 6, 12, 16]))
    )
    slow = any(sink["type"] == "webhook" for sink in sinks.values()) or pipeline.get("max_bytes") == 300
    slow = slow or bool(pipeline.get("store"))
    limit = 20_000
    if paired:
        # The large transactions have most of the changes.
        limit = 6_000 if slow else 30_000
    elif short or slow:
        limit = 1_000 if short else 2_000
    elif chance.random() < 0.04:
        mixture |= chance.choice(
            [{"savepoints": 50_000}, {"savepoints": 50_000}, {"rows": 100_000}, {"rows": 1_000_000}]
        )
        limit = 200_000
    if mixture.get("rows") == 1_000_000:
        # Time for the transaction; and with more consumers, the verifier needs too much memory.
        lives = (replace(lives[0], seconds=10.0), *lives[1:])
        sinks = {"sink0": {"type": "jsonl", "rotate_bytes": 10_000_000}}
        pipeline = {
            name: value for name, value in pipeline.items() if name not in ("max_bytes", "compact", "store")
        }
    limits = chance.choice([{}, {}, {}, {}, {}, {}, {"files": 30}, {"memory": 200_000_000}])
    # A second writer would leave no pause between pairs.
    writers = 1 if paired else chance.choice([1, 2, 3])
    aftermath: tuple[str, ...] = ()
    if (
        not writes
        and pipeline["journal"]
        and version >= 14
        and source.get("interface") != "sql"
        and chance.random() < 0.25
    ):
        aftermath = chance.choice(DAMAGES), chance.choice(REMEDIES)
    if pipeline.get("store"):
        # These limits end obstore's threads.
        limits, aftermath = {}, () if "older copy" in aftermath else aftermath
    if not promotion and chance.random() < (0.15 if short else 0.3):
        lives = _with_target_standby(chance, pipeline, sinks, lives)
    if promotion == "follows":
        lives = _struck_once(chance, lives, PROMOTE)
    elif promotion and not writes:
        aftermath = promotion, chance.choice(REMEDIES)
    program = Program(
        seed, version, writers, limit, mixture, source, pipeline, sinks, lives, limits, aftermath
    )
    program = _published(program)
    return program if short else mirrored.with_mirror(program)


def _published(program: Program) -> Program:
    """Draw the publication, the role, what the writers do besides changing rows, and the damage that depends on the sinks."""
    # A generator of its own, so that a seed's other choices do not depend on these.
    chance = random.Random(f"publication {program.seed}")
    version = program.version
    # Without a journal, a start with patterns that may match nothing is refused if the server has ever crashed, as programs let it:
    # then nothing tells whether the slot was read before.
    exact = not program.pipeline["journal"]
    if exact:
        sinks_now = {
            name: {**sink, "mask": [column.removesuffix("?") for column in sink["mask"]]}
            if "mask" in sink
            else sink
            for name, sink in program.sinks.items()
        }
        program = replace(program, sinks=sinks_now)
    sinks = program.sinks.values()
    mixture, source = dict(program.mixture), dict(program.source)
    snapshot = bool(program.pipeline.get("snapshot"))
    altered = all(sink["type"] != "postgres" for sink in sinks)
    publication: dict[str, bool] = {}
    parents = any(
        {"tree", "!tree"}
        & {*sink.get("tables", ()), *(column.partition(".")[0] for column in sink.get("mask", ()))}
        for sink in sinks
    )
    if version >= 15 and not parents and chance.random() < 0.3:
        publication = chance.choice(
            [{"filtered": True}, {"listed": True}, {"filtered": True, "listed": True}]
        )
    elif not parents and chance.random() < 0.2:
        publication["named"] = True
    if publication:
        # It names its tables, so children of ``base`` would not be in it.
        mixture["children"] = False
        if not program.aftermath and chance.random() < 0.7:
            mixture["guests"] = "verify"
    else:
        mixture["traps"] = chance.random() < (0.6 if snapshot else 0.2)
    if not parents and chance.random() < (0.5 if snapshot else 0.15):
        # A detached partition has another name than its rows had.
        publication["roots"], mixture["children"] = True, False
    mixture["generated"] = chance.random() < 0.4
    # In the target of a ``postgres`` sink, the column is generated, too.
    if mixture["generated"] and version >= 18 and altered:
        publication["generated"] = chance.random() < 0.6
    mixture["renames"] = mixture["children"] and not exact and chance.random() < 0.5
    # A snapshot leaves a table out, and says so, if a type of its columns is altered while its rows are read.
    mixture["composites"] = altered and not snapshot and not program.standby and chance.random() < 0.4
    mixture["early"] = snapshot and chance.random() < 0.7
    if chance.random() < 0.3:
        mixture["origins"] = 0.15
        if version >= 16 and chance.random() < 0.6:
            source["origin"] = chance.choice(["none", "any"])
    mixture["notices"] = bool(source.get("messages")) and chance.random() < 0.7
    aftermath, runs = program.aftermath, program.runs
    if mixture["composites"]:
        # WAL does not have the numbers of commands. So after a crash, a row that follows an alteration in its transaction may stop a sink.
        runs = tuple(
            replace(run, strikes=tuple(strike for strike in run.strikes if strike[0] != "crash"))
            for run in runs
        )
    if altered and not aftermath and any(masks_notes(sink) for sink in sinks) and chance.random() < 0.7:
        aftermath = RENAMED, chance.choice(["running", "stopped"])
    if mixture["early"]:
        # The snapshot takes some seconds, and is not interrupted: otherwise the next life reads the rest beside the stream.
        lingers = {"at": "name:initial chunk", "nth": 1, "action": "linger"}
        runs = (Run((lingers,), (), 1.0, chance.choice(["kill", "stop"]), True), *runs)
    if parents and mixture["children"] and chance.random() < 0.6:
        # One process sees tables before and after they get a parent, and the writers have changes left for it.
        mixture |= {"pause": 0.15, "largest": 20, "streamed": 0.0, "child_weight": 3}
        place = int(mixture["early"])
        runs = (*runs[:place], QUIET, *runs[place:])
    pipeline = dict(program.pipeline)
    if mixture["early"]:
        # Without a limit, nothing but the limits of the chunks' own locks keeps the snapshot and its clients from waiting for each other.
        pipeline["lock_timeout"] = chance.choice([None, None, 10.0, 30.0])
    if chance.random() < 0.2:
        # Drawn last, so that it changes no earlier choice of a seed.
        source["visible"] = True
    return replace(
        program,
        mixture=mixture,
        pipeline=pipeline,
        source=source,
        publication=publication,
        role=chance.random() < 0.3,
        aftermath=aftermath,
        runs=runs,
    )


def masks_notes(sink: dict[str, Any]) -> bool:
    """Whether a sink gets ``accounts``, and masks a column by a pattern that may match nothing."""
    tables = sink.get("tables", ["accounts"])
    return (
        sink["type"] == "jsonl"
        and "accounts.note?" in sink.get("mask", ())
        and ("accounts" in tables or tables[0].startswith("!"))
    )


def _promotion(chance: random.Random, version: int, source: dict[str, Any], pipeline: dict[str, Any]) -> str:
    """Draw how a standby is promoted: the pipeline ``follows``, or a damage at the end; empty: there is none."""
    if (version >= 18 or (version == 17 and not source.get("two_phase"))) and chance.random() < 0.7:
        source["failover"] = True
        if chance.random() < 0.5:
            return "follows"
    if not pipeline["journal"] or version < 14 or source.get("interface") == "sql":
        return ""
    return "late standby" if source.get("failover") else chance.choice(["promotion", "late standby"])


def _with_target_standby(
    chance: random.Random, pipeline: dict[str, Any], sinks: dict[str, dict[str, Any]], lives: tuple[Run, ...]
) -> tuple[Run, ...]:
    """Give the target of a ``postgres`` sink a standby, which is promoted once."""
    targets = [sink for sink in sinks.values() if sink["type"] == "postgres"]
    for sink in targets:
        # Only a journal that keeps everything can deliver again what an asynchronous standby lacks.
        kept = pipeline["journal"] and "retention" not in pipeline
        sink["standby"] = chance.choice(["synchronous", "asynchronous"] if kept else ["synchronous"])
        if chance.random() < 0.7:
            # The process does not end before the promotion.
            lives = (*lives, *_struck_once(chance, (Run(waits=True),), PROMOTE_TARGET))
        else:
            lives = _struck_once(chance, lives, PROMOTE_TARGET)
    return lives


def _struck_once(chance: random.Random, lives: tuple[Run, ...], kind: str) -> tuple[Run, ...]:
    """Add a fault from outside to one of the lives."""
    number = chance.randrange(len(lives))
    strike = kind, round(chance.uniform(0, 0.5), 3), round(chance.random(), 3)
    return tuple(
        replace(one, strikes=(*one.strikes, strike)) if at == number else one for at, one in enumerate(lives)
    )


def _source(chance: random.Random, version: int) -> dict[str, Any]:
    options: dict[str, Any] = {"proto_version": chance.randint(1, _PROTOCOL[version])}
    if chance.random() < 0.15:
        options["interface"] = "sql"
    if version >= 14:
        options["binary"] = chance.random() < 0.4
    if options["proto_version"] >= 2 and chance.random() < 0.7:
        options["streaming"] = "parallel" if options["proto_version"] >= 4 and chance.random() < 0.5 else "on"
    if options["proto_version"] >= 3 and chance.random() < 0.5:
        options["two_phase"] = True
    if chance.random() < 0.4:
        options["transaction_buffer_bytes"] = 1
    if version >= 14 and chance.random() < 0.4:
        options["messages"] = True
    return options


def _pipeline(chance: random.Random, version: int, *, power: bool) -> dict[str, Any]:
    if chance.random() < 0.1:
        return {"connect": True, "journal": False}
    options: dict[str, Any] = {"journal": chance.random() < 0.6}
    if version >= 14 and chance.random() < 0.3:
        options |= {"snapshot": True, "connections": chance.choice([1, 3])}
    if chance.random() < 0.5:
        options["buffer_bytes"] = chance.choice([1, 20_000])
    if chance.random() < 0.7:
        options["max_bytes"] = chance.choice([300, 2_000, 50_000])
    if chance.random() < 0.5:
        options["flush_bytes"] = chance.choice([500, 10_000])
    options["flush_seconds"] = chance.choice([0.01, 0.1, 0.3])
    if options["journal"] and chance.random() < 0.5:
        options["segment_bytes"] = chance.choice([500, 20_000])
    if options["journal"] and chance.random() < 0.5:
        # Otherwise nearly all segments and transactions have one block.
        options["block_bytes"] = chance.choice([200, 5_000])
    if options["journal"] and chance.random() < 0.25:
        options["compact"] = True
    if options["journal"] and not power and chance.random() < 0.4:
        # After a power failure, the journal is read from its start.
        options["retention"] = chance.choice(["0s", "20kb", "1s 50kb"])
    if options["journal"] and chance.random() < 0.15:
        options["store"] = True
    return options


def _boundaries(
    chance: random.Random, version: int, source: dict[str, Any], pipeline: dict[str, Any]
) -> None:
    """Draw the options again that matter at the boundary between two transactions: how soon and how often positions are confirmed.

    A large transaction takes several batches, and positions before it are flushed and confirmed meanwhile.
    """
    if version >= 15 and source.get("interface") != "sql" and chance.random() < 0.8:
        source |= {"proto_version": max(3, source["proto_version"]), "two_phase": True}
    if not pipeline.get("connect") and not pipeline["journal"] and chance.random() < 0.3:
        pipeline["journal"] = True
    pipeline |= {
        "max_bytes": chance.choice([2_000, 10_000]),
        "flush_seconds": chance.choice([0.05, 0.2, 0.4]),
    }
    pipeline.pop("flush_bytes", None)
    if chance.random() < 0.7:
        pipeline["flush_bytes"] = chance.choice([5_000, 20_000])


def _sink(chance: random.Random, brokers: tuple[str, ...], *, power: bool) -> dict[str, Any]:
    """Draw a sink."""
    kinds = ["jsonl", "jsonl", "s3", "postgres", "webhook", *brokers]
    kind = chance.choice([kind for kind in kinds if kind != "s3" or not power])
    if kind == "postgres":
        return {
            "type": kind,
            "mode": chance.choice(["upsert", "strict"]),
            "transactions": chance.choice(["batch", "source"]),
        }
    options: dict[str, Any] = {"type": kind}
    if kind == "jsonl":
        options["rotate_bytes"] = chance.choice([2_000, 100_000, 10_000_000])
        if chance.random() < 0.6:
            options["faulty"] = chance.randrange(1 << 30)
    elif kind == "s3":
        options["object_bytes"] = chance.choice([2_000, 1_000_000])
    elif kind == "kafka":
        options |= {
            "partitions": chance.choice([1, 3]),
            "exactly_once": chance.random() < 0.5,
            "tombstones": chance.random() < 0.3,
            "compression": chance.choice([None, "gzip"]),
        }
    elif kind == "webhook":
        options |= {"request_events": chance.choice([5, 20, 500]), "concurrency": chance.choice([1, 4])}
    if chance.random() < 0.3:
        options["tables"] = chance.choice(
            [
                ["accounts", "ledger"],
                ["accounts", "entries", "ledger"],
                ["tree", "base", "items", "ledger"],
                ["!tree", "!base"],
            ]
        )
    if kind == "jsonl" and chance.random() < 0.25:
        options["rejects"] = "some accounts"
    else:
        if chance.random() < 0.4:
            options["mask"] = chance.choice(
                [["accounts.note?"], ["accounts.note", "notes.doc"], ["tree.secret", "base.secret"]]
            )
        if chance.random() < 0.2:
            options["transform"] = "every other"
    if chance.random() < 0.3:
        options["schema_changes"] = True
    return options


def _reached(
    source: dict[str, Any], pipeline: dict[str, Any], sinks: dict[str, dict[str, Any]], *, signals: bool
) -> list[str]:
    """Return the named points that a program with these options passes."""
    points = ["status"]
    if not pipeline.get("connect"):
        points += ["accepted", "sink flush"]
    if pipeline["journal"]:
        points += ["journal step", "journal commit", "cursor"]
        points += ["journal part"] if "segment_bytes" in pipeline else []
        points += ["prepared"] if source.get("two_phase") else []
    if any(sink["type"] == "jsonl" for sink in sinks.values()) and not pipeline.get("connect"):
        points += ["jsonl write", "jsonl flush"]
    reached = {
        "spool": "transaction_buffer_bytes" in source,
        "chunk read": signals and not pipeline.get("connect"),
        "chunk ledger": bool(pipeline.get("snapshot")),
        "initial chunk": bool(pipeline.get("snapshot")),
        "dead letter": any("rejects" in sink for sink in sinks.values()),
        "prune": "retention" in pipeline,
        "compaction": "compact" in pipeline,
    }
    return points + [point for point, there in reached.items() if there]


def _kinds(pipeline: dict[str, Any], *, signals: bool) -> dict[str, int]:
    """Return the faults from outside that a program can have, each with its weight."""
    kinds = {kind: often for kind, often in KINDS.items() if signals or kind != "resnapshot"}
    if pipeline["journal"] and not pipeline.get("snapshot"):
        kinds[SECOND] = 4 if pipeline.get("store") else 1
    if pipeline.get("store"):
        kinds[OUTAGE] = 4
    return kinds


def _run(chance: random.Random, named: list[str], kinds: dict[str, int], *, power: bool, paired: bool) -> Run:
    arms = []
    if paired and chance.random() < 0.9:
        action = "power" if power else "kill"
        arms.append({"at": _CONFIRM, "nth": _nth(chance, _CONFIRM), "action": action})
    elif power and chance.random() < 0.9:
        # Most of them soon after a position was confirmed.
        at = chance.choice([_CONFIRM, _CONFIRM, "file", "await", *(f"name:{name}" for name in named)])
        arms.append({"at": at, "nth": _nth(chance, at), "action": "power"})
    elif not power and chance.random() < 0.6:
        at = chance.choice(["file", "file", "await", "await", *(f"name:{name}" for name in named)])
        action = chance.choice(["kill", "kill", "kill", "cancel"])
        arms.append({"at": at, "nth": _nth(chance, at), "action": action})
    if chance.random() < 0.15:
        arms.append(
            {
                "at": "await",
                "nth": _nth(chance, "await"),
                "action": chance.choice(["block", "clock", "wake"]),
            }
        )
    for _ in range(chance.choice([0, 1, 2, 4])):
        action = chance.choice([*ERRORS, "slow"])
        arms.append({"at": "file", "nth": int(2 ** chance.uniform(0, 7)), "action": action})
    # Between faults from outside, a pair needs time.
    count = chance.choice([0, 2, 4] if paired else [0, 4, 8, 16, 24])
    drawn = chance.choices(list(kinds), list(kinds.values()), k=count)
    strikes = tuple((kind, round(chance.uniform(0, 0.2), 3), round(chance.random(), 3)) for kind in drawn)
    return Run(
        tuple(arms),
        strikes,
        round(chance.uniform(0.2, 1.5) + paired, 3),
        chance.choice(["kill", "kill", "stop"]),
        chance.random() < 0.8,
    )


def _nth(chance: random.Random, at: str) -> int:
    """Draw at which passage through a point the fault strikes; the first ones more often."""
    return int(2 ** chance.uniform(0, {"file": 6, "await": 10, _CONFIRM: 6}.get(at, 3)))
