"""Journals written without a server, and what their histories must have."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from aiorepl import history
from aiorepl.history.compaction import Compaction
from aiorepl.journal import Cursors, JournalReader
from aiorepl.storage.local import LocalStore
from tests.growing_journal import GrowingJournal


class Journal(GrowingJournal):
    """A journal that grows when told to, and how it is read."""

    def __init__(self, folder: Path, **stream: Any) -> None:
        super().__init__(folder, **stream)
        self.store = LocalStore(folder / "history")

    def compaction(self, store: LocalStore | None = None, **options: Any) -> Compaction:
        return Compaction(JournalReader(self.folder), store or self.store, Cursors(self.folder), **options)

    def compact(self, **options: Any) -> Compaction:
        """Compact all that was written."""
        compaction = self.compaction(**options)
        compaction.run()
        return compaction

    def files(self, table: str = "t", schema: str = "public", **options: Any) -> list[Any]:
        found = history.files(self.folder, schema, table, **options)
        assert found is not None
        return list(found.files)

    def rows(self, table: str = "t", **options: Any) -> list[dict[str, Any]]:
        """The rows of a table, in the order of its files."""
        return [row for file in self.files(table, **options) for row in self.read(file)]

    def table(self, file: Any) -> Any:
        return pq.read_table(io.BytesIO(self.store.read(file.path)))

    def read(self, file: Any) -> list[dict[str, Any]]:
        found = self.table(file)
        assert found.num_rows == file.rows
        assert found.schema.equals(file.schema)
        rows: list[dict[str, Any]] = found.to_pylist()
        positions = [(row["_commit_lsn"], row["_ordinal"]) for row in rows]
        assert positions == sorted(positions)
        assert (positions[0], positions[-1]) == (file.first, file.last)
        return rows


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def make_journal(tmp_path: Path) -> Any:
    """Journals with a stream that is set up in some way."""
    return lambda **stream: Journal(tmp_path / "journal", **stream)
