"""How the process under test ends: which errors its faults explain, and how much memory it took."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from program import Program
from report import Outcome

from aiorepl import errors

# A process may end with these errors even if no system call has failed.
_EXCUSED = ("ConnectionFailed", "ConnectionLost", "ServerError")
# A SlotError must have one of these texts: the slot is held by a killed process's connection, or a start meets a standby before its promotion.
_PASSING = (
    "is in use by process",
    "another consumer is connected",
    "is being synchronized from the primary on this standby",
)
# A second pipeline writes the journal, or has written it, or has moved the slot.
_FENCED = ("another writer has taken over", "another process writes", "by another consumer")
# After a failed call of the operating system, the error must have one of these texts.
_ADVICE = ("make room", "raise the process's limit", "check the disk")
# The memory of a process is checked if a transaction has this many rows; it may then grow by this many bytes.
_MANY_ROWS = 1_000_000
_MOST_BYTES = 400_000_000


class Ends:
    """Adds the ends of processes, and violations, to an outcome.

    :param folder: of the round.
    """

    def __init__(self, program: Program, folder: Path, outcome: Outcome) -> None:
        self._program = program
        self._folder = folder
        self._outcome = outcome

    def note(self, code: int, struck: list[str], *, fenced: bool = False, folder: Path | None = None) -> None:
        """Note the end of a process.

        :param code: its exit code.
        :param struck: the faults within it.
        :param fenced: whether there was a second pipeline.
        :param folder: the folder of the process, if it is not the round's.
        """
        folder = folder or self._folder
        end = self._read_end(folder)
        if code in (0, -signal.SIGKILL):
            self._outcome.ends["killed" if code else "stopped"] += 1
            return
        error = self.last_error(folder)
        kind = error.partition(":")[0]
        self._outcome.ends[kind] += 1
        passing = kind == "SlotError" and any(text in error for text in _PASSING)
        fenced = fenced and any(text in error for text in _FENCED)
        # A start gives up once the store's client has given up its retries.
        away = "the store" in error and not end.get("started", True)
        if kind in _EXCUSED or passing or fenced or away or "memory" in self._program.limits:
            # Without memory, a process may end in any way.
            return
        if not any(line.startswith("E") for line in struck):
            self._outcome.violations.append(f"the pipeline ended by itself: {error}")
        elif problem := self._unclear(kind, error):
            self._outcome.violations.append(f"after a failed call, {problem}: {error}")

    def last_error(self, folder: Path | None = None) -> str:
        """Return the last line that a process has written."""
        told = ((folder or self._folder) / "stderr").read_text().splitlines()
        return told[-1][:500] if told else "no error text"

    def _read_end(self, folder: Path) -> dict[str, Any]:
        """Return the record that the process has written at its end; empty if it was killed."""
        noted = folder / "end.json"
        if not noted.exists():
            return {}
        end: dict[str, Any] = json.loads(noted.read_text())
        noted.unlink()
        if self._program.mixture.get("rows", 0) >= _MANY_ROWS and end["bytes"] > _MOST_BYTES:
            self._outcome.violations.append(f"the process took {end['bytes']:,} bytes of memory")
        return end

    def _unclear(self, kind: str, error: str) -> str:
        """Say what is missing from the error after a call of the operating system has failed; empty if nothing is."""
        if not issubclass(getattr(errors, kind, object), errors.AioreplError):
            return "the error is not one of aiorepl"
        if str(self._folder) not in error:
            return "the error does not name the file or its folder"
        return "" if any(advice in error for advice in _ADVICE) else "the error does not say what to do"
