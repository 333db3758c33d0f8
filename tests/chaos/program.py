"""Programs: a workload, a configuration and faults, all drawn from one seed (``drawing``).

A program is data: its JSON replays it, and the shrinker removes parts of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any


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
    :param limits: limits of the process, see ``worker``.
    :param aftermath: the damage after everything else, and the remedy; empty: none.
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
    limits: dict[str, int] = field(default_factory=dict)
    aftermath: tuple[str, ...] = ()

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
        aftermath = tuple(fields.pop("aftermath", ()))
        return cls(**fields, runs=runs, aftermath=aftermath)

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
        if self.aftermath:
            yield replace(self, aftermath=())
        for name in self.sinks if len(self.sinks) > 1 else ():
            yield replace(self, sinks={other: sink for other, sink in self.sinks.items() if other != name})
        for part in ("source", "pipeline", "limits"):
            options = getattr(self, part)
            for name in options:
                without: dict[str, Any] = {part: {key: options[key] for key in options if key != name}}
                yield replace(self, **without)
        for sink, options in self.sinks.items():
            for name in options.keys() - {"type"}:
                less = {key: options[key] for key in options if key != name}
                yield replace(self, sinks={**self.sinks, sink: less})
