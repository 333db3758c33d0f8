"""Finds out, before Spark starts, whether a mirror has everything that its journal has. Does not start Java.

As Spark does at a query's start, this asks the data source for the next batch. So it makes the same checks, and moves the
consumer's cursor.
"""

from __future__ import annotations

import json
from typing import Any, Final

from aiorepl.spark.mirroring.source import MirrorReader
from aiorepl.spark.mirroring.state import SavedState
from aiorepl.spark.reading.offsets import Offset
from aiorepl.storage.store import Store

_VERSION: Final = "v1"
"""The first line of each file in Spark's offset log."""


def up_to_date(state: SavedState | None, checkpoint: Store, reader: MirrorReader) -> bool:
    """Whether the last batch has ended, and the journal has no changes after it. If in doubt, the answer is no.

    :param checkpoint: the query's checkpoint.
    :param reader: the query's data source.
    :raises AioreplError: the query could not start.
    :raises OSError: the checkpoint or the target cannot be read.
    """
    if state is None or state.planned > state.end:
        return False
    start = _end_of(state.batch, checkpoint)
    if start is None or Offset.from_json(start).place != state.end:
        return False
    reader.prepareForTriggerAvailableNow()
    return reader.latestOffset(start, reader.getDefaultReadLimit()) == start


def _end_of(batch: int, checkpoint: Store) -> dict[str, Any] | None:
    """Return the end of a batch, if Spark has recorded that the batch is done and has planned no later batch."""
    if str(batch) not in checkpoint.names("commits"):
        return None
    if max((int(name) for name in checkpoint.names("offsets") if name.isdecimal()), default=-1) != batch:
        return None
    version, *lines = checkpoint.read(f"offsets/{batch}").decode().splitlines()
    if version != _VERSION or len(lines) != 2:
        return None
    found: dict[str, Any] = json.loads(lines[1])
    return found
