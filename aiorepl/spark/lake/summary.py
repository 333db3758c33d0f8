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
    return {_LSN: str(commit.lsn), _NUMBER: str(commit.number), _APPLICATION: commit.application, **last}


def commit_of(found: Mapping[str, Any]) -> Commit | None:
    """Return the commit from its texts; ``None`` if the texts are of a commit that does not end a batch."""
    if _LSN not in found:
        return None
    lsn, _, ordinal = str(found.get(_LAST, "")).partition(" ")
    last = (int(lsn), int(ordinal)) if ordinal else None
    return Commit(application_of(found) or "", int(found[_NUMBER]), LSN.parse(str(found[_LSN])), last)


def application_of(found: Mapping[str, Any]) -> str | None:
    """Return the application from a commit's texts; ``None``: another program made the commit."""
    application = found.get(_APPLICATION)
    return None if application is None else str(application)
