"""The findings of ``aiorepl check``, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from aiorepl.errors import AioreplError

SHOWN: Final = 5
"""The most names that a finding lists."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    :param level: an error keeps a pipeline from starting or continuing; a warning may become one.
    :param about: the subject of the check, in a word.
    :param text: the state of the subject, and what to do.
    :param exit_code: for an error, the exit code of a command that fails with it; else 0.
    :param sql: statements that correct it; ``None`` if there are none that can be run unchanged.
    """

    level: Literal["ok", "warning", "error"]
    about: str
    text: str
    exit_code: int = 0
    sql: str | None = None


def error_found(about: str, error: AioreplError) -> Finding:
    """The finding for a check that raised ``error``."""
    return Finding("error", about, str(error), error.exit_code)


def shown(names: Sequence[str]) -> str:
    """List names, the first five of them."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
