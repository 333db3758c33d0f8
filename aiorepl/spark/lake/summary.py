"""Converts a batch's commit to and from the texts that a table format stores with its own commit. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiorepl.lsn import LSN
from aiorepl.spark.lake.table import Commit

_LSN: Final = "aiorepl.lsn"
_APPLICATION: Final = "aiorepl.application"
_NUMBER: Final = "aiorepl.batch"
_LAST: Final = "aiorepl.last"


def metadata_of(commit: Commit) -> dict[str, str]:
    """Return a commit as texts."""
    last = {} if commit.last is None else {_LAST: "{} {}".format(*commit.last)}
    return {_LSN: str(commit.lsn), _APPLICATION: commit.application, _NUMBER: str(commit.number), **last}


def commit_of(found: Mapping[str, Any]) -> Commit | None:
    """Return the commit from its texts; ``None`` if they do not end a batch."""
    if _LSN not in found:
        return None
    lsn, _, ordinal = str(found.get(_LAST, "")).partition(" ")
    last = (int(lsn), int(ordinal)) if ordinal else None
    return Commit(str(found[_APPLICATION]), int(found[_NUMBER]), LSN.parse(str(found[_LSN])), last)
