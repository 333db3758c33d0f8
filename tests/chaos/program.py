"""Programs: a workload, a configuration and faults, all drawn from one seed (``drawing``).

A program is data: its JSON replays it, and the shrinker removes parts of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from aiorepl.verify import Publication

RENAMED = "renamed column"
"""The damage after which a masked column has another name, see ``renamed``."""
# With a smaller limit, programs have too few changes to find anything.
_LEAST = 500
# Options that cannot be left out.
_NEEDED = {
    "type",
    "journal",
    "keys",
    "rotate_bytes",
    "object_bytes",
    "request_events",
    "mode",
    "transactions",
}


@dataclass(frozen=True, slots=True)
class Run:
    """One life of the process.

    :param arms: faults within the process, see ``hooks``.
    :param strikes: faults from outside: the kind, the seconds before it, and its size or length from 0 to 1.
    :param seconds: how long the process lives, if no fault ends it before.
    :param end: ``kill`` or ``stop``.
    :param waits: whether the time and the faults from outside begin only once the stream has started.
    """

    arms: tuple[dict[str, Any], ...] = ()
    strikes: tuple[tuple[str, float, float], ...] = ()
    seconds: float = 1.0
    end: str = "kill"
    waits: bool = False


QUIET = Run(seconds=6.0, end="stop", waits=True)
"""A life without faults, long enough for tables to get a parent."""


@dataclass(frozen=True, slots=True)
class Program:
    """A random program.

    :param limit: the largest number of changes to write, because some sinks are slow.
    :param source: options of ``Source``.
    :param pipeline: options of ``Pipeline`` that JSON can hold, and ``journal`` as a boolean.
    :param sinks: each sink's options, see ``worker``.
    :param mixture: options of ``Mixture``.
    :param limits: limits of the process, see ``worker``.
    :param publication: options of ``Publication``.
    :param role: whether the process has a role that may only replicate and read the tables.
    :param mirror: the options of a Spark mirror of the journal, see ``mirrored``; empty: none.
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
    mirror: dict[str, Any] = field(default_factory=dict)
    publication: dict[str, bool] = field(default_factory=dict)
    role: bool = False

    @property
    def published(self) -> Publication:
        """What the process can get."""
        return Publication(**self.publication, origins=self.source.get("origin") != "none")

    @property
    def promotes(self) -> bool:
        """Whether the standby is promoted while the writers write."""
        return any(kind == "promote" for run in self.runs for kind, *_ in run.strikes)

    @property
    def standby(self) -> bool:
        """Whether the server has a standby."""
        return self.promotes or bool({"promotion", "late standby"} & {*self.aftermath})

    @property
    def target_standby(self) -> str:
        """The kind of standby of a ``postgres`` sink's target: ``synchronous`` or ``asynchronous``; empty: none."""
        return next((sink["standby"] for sink in self.sinks.values() if "standby" in sink), "")

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
            Run(
                tuple(run["arms"]),
                tuple(map(tuple, run["strikes"])),
                run["seconds"],
                run["end"],
                run.get("waits", False),
            )
            for run in fields.pop("runs")
        )
        aftermath = tuple(fields.pop("aftermath", ()))
        return cls(**fields, runs=runs, aftermath=aftermath)

    def shorter(self) -> Iterator[Program]:
        """Return simpler programs, the simplest first."""
        yield from self._fewer_runs()
        quiet = tuple(replace(run, strikes=()) for run in self.runs)
        unarmed = tuple(replace(run, arms=()) for run in self.runs)
        simplest = {"limit": self.limit // 4} if self.limit > _LEAST else {}
        simplest |= {"writers": 1, "aftermath": (), "limits": {}, "mirror": {}, "role": False}
        for change in (
            {"runs": quiet},
            {"runs": unarmed},
            *({name: value} for name, value in simplest.items()),
        ):
            candidate = replace(self, **change)
            if candidate != self:
                yield candidate
        for name in self.sinks if len(self.sinks) > 1 else ():
            yield replace(self, sinks={other: sink for other, sink in self.sinks.items() if other != name})
        yield from self._fewer_faults()
        lives = self.mirror.get("lives", ())
        for number in range(len(lives)):
            yield replace(self, mirror={**self.mirror, "lives": [*lives[:number], *lives[number + 1 :]]})
        for part in ("source", "pipeline", "mixture", "publication"):
            options = getattr(self, part)
            for name in options.keys() - _NEEDED:
                without: dict[str, Any] = {part: {key: options[key] for key in options if key != name}}
                yield replace(self, **without)
        for sink, options in self.sinks.items():
            for name in options.keys() - _NEEDED:
                less = {key: options[key] for key in options if key != name}
                yield replace(self, sinks={**self.sinks, sink: less})

    def _fewer_runs(self) -> Iterator[Program]:
        """Leave out half of the runs, then single ones."""
        runs, half = self.runs, len(self.runs) // 2
        if half > 1:
            yield replace(self, runs=runs[:half])
            yield replace(self, runs=runs[half:])
        for number in range(len(runs) if len(runs) > 1 else 0):
            yield replace(self, runs=(*runs[:number], *runs[number + 1 :]))

    def _fewer_faults(self) -> Iterator[Program]:
        for number, run in enumerate(self.runs):
            for part in ("arms", "strikes"):
                faults = getattr(run, part)
                for left_out in range(len(faults)):
                    less = replace(run, **{part: (*faults[:left_out], *faults[left_out + 1 :])})
                    yield replace(self, runs=(*self.runs[:number], less, *self.runs[number + 1 :]))

    def script(self) -> str:
        """Return the program as a text for readers, a line for each run."""
        lines = [
            f"PostgreSQL {self.version}, {self.writers} writers, up to {self.limit} changes: {_listed(self.mixture)}",
            f"source: {_listed(self.source)}",
            f"pipeline: {_listed(self.pipeline)}",
            *(f"{name}: {_listed(options)}" for name, options in self.sinks.items()),
        ]
        for run in self.runs:
            arms = [f"{arm['action']} at {arm['at']} number {arm['nth']}" for arm in run.arms]
            strikes = [f"{kind} ({size}) after {seconds} s" for kind, seconds, size in run.strikes]
            lines.append(f"run: {', '.join([*arms, *strikes, f'{run.end} after {run.seconds} s'])}")
        if self.limits:
            lines.append(f"limits: {_listed(self.limits)}")
        if self.mirror:
            lines.append(f"mirror: {_listed(self.mirror)}")
        if self.aftermath:
            lines.append(f"finally: {', then '.join(self.aftermath)}")
        return "\n".join(lines)


def _listed(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items()) or "as by default"
