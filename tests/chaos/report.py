"""The report of ``make chaos``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from program import Program


@dataclass(slots=True)
class Outcome:
    """The result of a program."""

    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    """Transactions that were compared, counted for each consumer."""
    changes: int = 0
    rows: int = 0
    duplicates: int = 0
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)
    """The seconds by step."""

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time of a block to a step."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.spent[step] = self.spent.get(step, 0.0) + time.monotonic() - began


class Report:
    """The results of all programs."""

    def __init__(self) -> None:
        self.rounds = 0
        self.seconds = 0.0
        self.transactions = 0
        self.changes = 0
        self.duplicates = 0
        self.rows = 0
        self.faults: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.versions: Counter[int] = Counter()
        self.spent: dict[str, float] = {}
        self.violations: list[tuple[int, list[str]]] = []

    def add(self, program: Program, outcome: Outcome) -> None:
        """Add a round."""
        self.rounds += 1
        self.transactions += outcome.transactions
        self.changes += outcome.changes
        self.duplicates += outcome.duplicates
        self.rows += outcome.rows
        self.ends += outcome.ends
        self.versions[program.version] += 1
        self.add_faults(program.seed, outcome)

    def add_faults(self, seed: int, outcome: Outcome) -> None:
        """Add the faults and violations of a round, or of another program of the suite."""
        self.seconds += outcome.seconds
        self.faults += outcome.faults
        for step, seconds in outcome.spent.items():
            self.spent[step] = self.spent.get(step, 0.0) + seconds
        if outcome.violations:
            self.violations.append((seed, outcome.violations))

    def line(self, program: Program, outcome: Outcome) -> str:
        """Return a line about a round."""
        head = (
            f"seed {program.seed}: PostgreSQL {program.version}, {sum(outcome.faults.values())} faults, "
            f"{outcome.transactions} transactions, {outcome.duplicates} duplicates, {outcome.seconds:.0f} s"
        )
        return "\n".join([head, *(f"  VIOLATION: {violation}" for violation in outcome.violations[:4])])

    @property
    def summary(self) -> str:
        """Return the report in a sentence."""
        return (
            f"{self.rounds} rounds in {self.seconds / 60:.0f} minutes, {sum(self.faults.values())} faults; {self.transactions} "
            f"transactions with {self.changes} changes ({self.rows} rows of snapshots) were verified, {self.duplicates} changes came again; "
            f"{len(self.violations)} rounds with violations."
        )

    def text(self) -> str:
        """Return the report as Markdown."""
        lines = [
            self.summary,
            "",
            "| fault | times |",
            "|---|---:|",
            *(f"| {kind} | {times} |" for kind, times in self.faults.most_common()),
            "",
            "| how the process ended | times |",
            "|---|---:|",
            *(f"| {kind} | {times} |" for kind, times in self.ends.most_common()),
            "",
            "| step | seconds |",
            "|---|---:|",
            *(
                f"| {step} | {seconds:.0f} |"
                for step, seconds in sorted(self.spent.items(), key=lambda one: -one[1])
            ),
            "",
            "Servers: "
            + ", ".join(f"{version}: {times}" for version, times in sorted(self.versions.items())),
            "",
            "Violations: none" if not self.violations else "Violations:",
        ]
        for seed, violations in self.violations:
            lines += [f"- seed {seed}: {violation}" for violation in violations]
        return "\n".join(lines) + "\n"
