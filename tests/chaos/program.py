"""Random programs: a workload, a configuration and faults, all drawn from one seed.

A program is data: its JSON replays it, and the shrinker removes parts of it.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hooks import ERRORS, NAMED
from strikes import KINDS

VERSIONS = (13, 14, 15, 16, 17, 18)
_PROTOCOL = {13: 1, 14: 2, 15: 3, 16: 4, 17: 4, 18: 4}


@dataclass(frozen=True, slots=True)
class Run:
    """One life of the process.

    :param arms: faults within the process, see ``hooks``.
    :param strikes: faults from outside: the kind, the seconds before it, and its size or length from 0 to 1.
    :param seconds: how long the process lives, if no fault ends it before.
    :param end: ``kill`` or ``stop``.
    """

    arms: tuple[dict[str, Any], ...] = ()
    strikes: tuple[tuple[str, float, float], ...] = ()
    seconds: float = 1.0
    end: str = "kill"


@dataclass(frozen=True, slots=True)
class Program:
    """A random program.

    :param limit: the largest number of changes to write, because some sinks are slow.
    :param source: options of ``Source``.
    :param pipeline: options of ``Pipeline`` that JSON can hold, and ``journal`` as a boolean.
    :param sinks: each sink's options, see ``worker``.
    :param mixture: options of ``Mixture``.
    """

    seed: int
    version: int
    writers: int
    limit: int
    mixture: dict[str, Any]
    source: dict[str, Any]
    pipeline: dict[str, Any]
    sinks: dict[str, dict[str, Any]]
    runs: tuple[Run, ...] = field(default=())

    @property
    def power(self) -> bool:
        """Whether the power fails. Then unsynced data may be lost, so nothing is read until the process is restarted."""
        return any(arm["action"] == "power" for run in self.runs for arm in run.arms)

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Read what ``to_json`` wrote."""
        fields = json.loads(text)
        runs = tuple(
            Run(tuple(run["arms"]), tuple(map(tuple, run["strikes"])), run["seconds"], run["end"])
            for run in fields.pop("runs")
        )
        return cls(**fields, runs=runs)

    def shorter(self) -> Iterator[Program]:
        """Return simpler programs, the simplest first."""
        for number, run in enumerate(self.runs):
            rest = self.runs[:number], self.runs[number + 1 :]
            if len(self.runs) > 1:
                yield replace(self, runs=(*rest[0], *rest[1]))
            for left_out in range(len(run.arms)):
                arms = (*run.arms[:left_out], *run.arms[left_out + 1 :])
                yield replace(self, runs=(*rest[0], replace(run, arms=arms), *rest[1]))
            for left_out in range(len(run.strikes)):
                strikes = (*run.strikes[:left_out], *run.strikes[left_out + 1 :])
                yield replace(self, runs=(*rest[0], replace(run, strikes=strikes), *rest[1]))
        if self.writers > 1:
            yield replace(self, writers=1)
        for name in self.sinks if len(self.sinks) > 1 else ():
            yield replace(self, sinks={other: sink for other, sink in self.sinks.items() if other != name})
        for part in ("source", "pipeline"):
            options = getattr(self, part)
            for name in options:
                without: dict[str, Any] = {part: {key: options[key] for key in options if key != name}}
                yield replace(self, **without)
        for sink, options in self.sinks.items():
            for name in options.keys() - {"type"}:
                less = {key: options[key] for key in options if key != name}
                yield replace(self, sinks={**self.sinks, sink: less})


def draw(seed: int, *, versions: tuple[int, ...] = VERSIONS, runs: int | None = None) -> Program:
    """Draw the program of a seed.

    :param versions: the available server versions.
    :param runs: how many times the process is started with faults; ``None``: one to eight.
    """
    chance = random.Random(seed)
    version = chance.choice(versions)
    source, pipeline = _source(chance, version), _pipeline(chance, version)
    if pipeline.get("snapshot"):
        source.pop("interface", None)  # only a replication connection exports a snapshot
    if pipeline.get("connect"):
        sinks = {"sink0": {"type": "jsonl"}}
    else:
        sinks = {f"sink{number}": _sink(chance) for number in range(chance.choice([1, 1, 2, 3]))}
        # There is only one target.
        for name in [name for name, sink in sinks.items() if sink["type"] == "postgres"][1:]:
            sinks[name] = {"type": "jsonl", "rotate_bytes": 2_000}
    for sink in sinks.values() if pipeline.get("snapshot") else ():
        if sink["type"] == "postgres":
            # An interrupted snapshot continues beside the stream, which then changes rows before they are read.
            sink["mode"] = "upsert"
    # The sink's target would have to be altered first.
    altered = all(sink["type"] != "postgres" for sink in sinks.values())
    keys = 600 if pipeline.get("snapshot") else chance.choice([8, 60, 60])
    mixture = {
        "keys": keys,
        "largest": chance.choice([50, 500, 2000]),
        "schema_changes": altered and chance.random() < 0.6,
        "prepared": chance.random() < 0.7,
    }
    # Other sinks write their files with functions that the disk does not record.
    power = (
        chance.random() < 0.3
        and not pipeline.get("connect")
        and all(sink["type"] != "s3" for sink in sinks.values())
    )
    # Version 13 has no messages in its stream; the SQL interface exports no snapshot for tables without a key.
    signals = version >= 14 and source.get("interface") != "sql"
    lives = tuple(
        _run(chance, signals=signals, power=power) for _ in range(runs or chance.choice([1, 2, 4, 8, 12]))
    )
    slow = any(sink["type"] == "webhook" for sink in sinks.values()) or pipeline.get("max_bytes") == 300
    limit = 2_000 if slow else 20_000
    return Program(seed, version, chance.choice([1, 2, 3]), limit, mixture, source, pipeline, sinks, lives)


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


def _pipeline(chance: random.Random, version: int) -> dict[str, Any]:
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
    return options


def _sink(chance: random.Random) -> dict[str, Any]:
    kind = chance.choice(["jsonl", "jsonl", "s3", "postgres", "webhook"])
    if kind == "postgres":
        return {
            "type": kind,
            "mode": chance.choice(["upsert", "strict"]),
            "transactions": chance.choice(["batch", "source"]),
        }
    options: dict[str, Any] = {"type": kind}
    if kind == "jsonl":
        options["rotate_bytes"] = chance.choice([2_000, 100_000, 10_000_000])
        if chance.random() < 0.4:
            options["faulty"] = chance.randrange(1 << 30)
    elif kind == "s3":
        options["object_bytes"] = chance.choice([2_000, 1_000_000])
    else:
        options |= {"request_events": chance.choice([5, 20, 500]), "concurrency": chance.choice([1, 4])}
    if chance.random() < 0.3:
        options["tables"] = chance.choice([["accounts", "ledger"], ["accounts", "entries", "ledger"]])
    if chance.random() < 0.2:
        options["mask"] = ["accounts.note"]
    if chance.random() < 0.2:
        options["transform"] = "every other"
    if chance.random() < 0.3:
        options["schema_changes"] = True
    return options


def _run(chance: random.Random, *, signals: bool, power: bool) -> Run:
    arms = []
    if chance.random() < 0.6:
        at = chance.choice(["file", "file", "await", "await", *(f"name:{name}" for name in NAMED)])
        nth = int(2 ** chance.uniform(0, {"file": 6, "await": 10}.get(at, 3)))
        action = "power" if power else chance.choice(["kill", "kill", "kill", "cancel"])
        arms.append({"at": at, "nth": nth, "action": action})
    for _ in range(chance.choice([0, 0, 1, 3])):
        action = chance.choice([*ERRORS, "slow"])
        arms.append({"at": "file", "nth": int(2 ** chance.uniform(0, 7)), "action": action})
    drawn = {kind: often for kind, often in KINDS.items() if signals or kind != "resnapshot"}
    kinds = chance.choices(list(drawn), list(drawn.values()), k=chance.choice([0, 1, 2, 4, 6]))
    strikes = tuple((kind, round(chance.uniform(0, 0.3), 3), round(chance.random(), 3)) for kind in kinds)
    return Run(
        tuple(arms), strikes, round(chance.uniform(0.2, 1.5), 3), chance.choice(["kill", "kill", "stop"])
    )
