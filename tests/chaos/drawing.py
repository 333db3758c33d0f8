"""Draws programs from seeds."""

from __future__ import annotations

import random
from typing import Any

from aftermath import DAMAGES, REMEDIES
from hooks import ERRORS
from program import Program, Run
from strikes import KINDS

VERSIONS = (13, 14, 15, 16, 17, 18)
_PROTOCOL = {13: 1, 14: 2, 15: 3, 16: 4, 17: 4, 18: 4}
_CONFIRM = "name:status"


def draw(seed: int, *, versions: tuple[int, ...] = VERSIONS, short: bool = False) -> Program:
    """Draw the program of a seed.

    :param versions: the available server versions.
    :param short: start the process at most twice with faults, and write little.
    """
    chance = random.Random(seed)
    version = chance.choice(versions)
    # Other sinks write their files with functions that the disk does not record.
    power = chance.random() < 0.35
    source, pipeline = _source(chance, version), _pipeline(chance, version, power=power)
    if pipeline.get("snapshot"):
        source.pop("interface", None)  # only a replication connection exports a snapshot
    if pipeline.get("connect"):
        sinks, power = {"sink0": {"type": "jsonl"}}, False
    else:
        sinks = {f"sink{number}": _sink(chance, power=power) for number in range(chance.choice([1, 1, 2, 3]))}
        # There is only one target.
        for name in [name for name, sink in sinks.items() if sink["type"] == "postgres"][1:]:
            sinks[name] = {"type": "jsonl", "rotate_bytes": 2_000}
    for sink in sinks.values() if pipeline.get("snapshot") else ():
        if sink["type"] == "postgres":
            # An interrupted snapshot continues beside the stream, which then changes rows before they are read.
            sink["mode"] = "upsert"
    if (
        source.get("two_phase")
        and not pipeline["journal"]
        and not pipeline.get("connect")
        and chance.random() < 0.6
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
        "streamed": chance.choice([0.1, 0.4]) if source.get("streaming") else 0.0,
    }
    # Version 13 has no messages in its stream; the SQL interface exports no snapshot for tables without a key.
    signals = version >= 14 and source.get("interface") != "sql"
    named = _reached(source, pipeline, sinks)
    lives = tuple(
        _run(chance, named, signals=signals, power=power)
        for _ in range(chance.choice([1, 2] if short else [1, 2, 4, 8, 12]))
    )
    slow = any(sink["type"] == "webhook" for sink in sinks.values()) or pipeline.get("max_bytes") == 300
    limit = 2_000 if slow else 20_000
    if short:
        limit = 1_000
    elif not slow and chance.random() < 0.03:
        mixture |= {"savepoints": 50_000} if chance.random() < 0.5 else {"rows": 100_000}
        limit = 200_000
    limits = chance.choice([{}, {}, {}, {}, {}, {}, {"files": 30}, {"memory": 200_000_000}])
    writers = chance.choice([1, 2, 3])
    aftermath: tuple[str, ...] = ()
    if pipeline["journal"] and version >= 14 and source.get("interface") != "sql" and chance.random() < 0.25:
        aftermath = chance.choice(DAMAGES), chance.choice(REMEDIES)
    return Program(seed, version, writers, limit, mixture, source, pipeline, sinks, lives, limits, aftermath)


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
    if options["journal"] and chance.random() < 0.25:
        options["compact"] = True
    if options["journal"] and not power and chance.random() < 0.4:
        # After a power failure, the journal is read from its start.
        options["retention"] = chance.choice(["0s", "20kb", "1s 50kb"])
    return options


def _sink(chance: random.Random, *, power: bool) -> dict[str, Any]:
    kinds = ["jsonl", "jsonl", "s3", "postgres", "webhook"]
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
    else:
        options |= {"request_events": chance.choice([5, 20, 500]), "concurrency": chance.choice([1, 4])}
    if chance.random() < 0.3:
        options["tables"] = chance.choice([["accounts", "ledger"], ["accounts", "entries", "ledger"]])
    if kind == "jsonl" and chance.random() < 0.25:
        options["rejects"] = "some accounts"
    else:
        if chance.random() < 0.2:
            options["mask"] = ["accounts.note"]
        if chance.random() < 0.2:
            options["transform"] = "every other"
    if chance.random() < 0.3:
        options["schema_changes"] = True
    return options


def _reached(source: dict[str, Any], pipeline: dict[str, Any], sinks: dict[str, dict[str, Any]]) -> list[str]:
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
        "chunk ledger": bool(pipeline.get("snapshot")),
        "dead letter": any("rejects" in sink for sink in sinks.values()),
        "prune": "retention" in pipeline,
        "compaction": "compact" in pipeline,
    }
    return points + [point for point, there in reached.items() if there]


def _run(chance: random.Random, named: list[str], *, signals: bool, power: bool) -> Run:
    arms = []
    if power and chance.random() < 0.9:
        # Most of them soon after a position was confirmed.
        at = chance.choice([_CONFIRM, _CONFIRM, "file", "await", *(f"name:{name}" for name in named)])
        arms.append({"at": at, "nth": _nth(chance, at), "action": "power"})
    elif not power and chance.random() < 0.6:
        at = chance.choice(["file", "file", "await", "await", *(f"name:{name}" for name in named)])
        action = chance.choice(["kill", "kill", "kill", "cancel"])
        arms.append({"at": at, "nth": _nth(chance, at), "action": action})
    if chance.random() < 0.15:
        arms.append(
            {"at": "await", "nth": _nth(chance, "await"), "action": chance.choice(["block", "clock"])}
        )
    for _ in range(chance.choice([0, 0, 1, 3])):
        action = chance.choice([*ERRORS, "slow"])
        arms.append({"at": "file", "nth": int(2 ** chance.uniform(0, 7)), "action": action})
    drawn = {kind: often for kind, often in KINDS.items() if signals or kind != "resnapshot"}
    kinds = chance.choices(list(drawn), list(drawn.values()), k=chance.choice([0, 2, 4, 8, 12]))
    strikes = tuple((kind, round(chance.uniform(0, 0.2), 3), round(chance.random(), 3)) for kind in kinds)
    return Run(
        tuple(arms), strikes, round(chance.uniform(0.2, 1.5), 3), chance.choice(["kill", "kill", "stop"])
    )


def _nth(chance: random.Random, at: str) -> int:
    """Draw at which passage through a point the fault strikes; the first ones more often."""
    return int(2 ** chance.uniform(0, {"file": 6, "await": 10, _CONFIRM: 6}.get(at, 3)))
