"""What ``check`` finds: one line for each thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aiorepl.errors import AioreplError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    :param level: an error keeps a pipeline from starting, or from going on; a warning may become one.
    :param about: what was looked at, in a word.
    :param text: how it is, and what to do.
    :param exit_code: of an error, that of the command which would end with it.
    """

    level: Literal["ok", "warning", "error"]
    about: str
    text: str
    exit_code: int = 0


def error_found(about: str, error: AioreplError) -> Finding:
    """The error that looking has ended with."""
    return Finding("error", about, str(error), error.exit_code)
