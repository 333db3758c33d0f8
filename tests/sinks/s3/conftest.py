"""Readers of a sink's objects."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import orjson
import pytest
from botocore.exceptions import ClientError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Identity = tuple[str, int]


class Store(Protocol):
    """The parts of a store that readers need."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes | None: ...


class FolderStore:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(path.relative_to(self.folder).as_posix() for path in found)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


def entries(store: Store) -> list[dict[str, Any]]:
    """The manifest, in order: entries are numbered without a gap."""
    found = []
    for number in count(1):
        try:
            entry = store.read(f"_aiorepl/manifest/{number:016d}.json")
        except (FileNotFoundError, ClientError):
            break
        if entry is None:
            break
        found.append(orjson.loads(entry))
    return found


def listed(store: Store) -> list[str]:
    """The objects that count, in order."""
    return [found["path"] for entry in entries(store) for found in entry["objects"]]


def data(store: Store) -> list[str]:
    """Return the existing objects, as readers that list the folders see them."""
    # S3Proxy keeps parts of uploads among the objects, hidden.
    return [name for name in store.names() if not name.startswith(("_", "."))]


def lines(store: Store, names: list[str]) -> list[dict[str, Any]]:
    """The events in objects of JSON lines."""
    found = []
    for name in names:
        content = store.read(name)
        if name.endswith(".zst"):
            content = zstd.decompress(content)
        elif name.endswith(".gz"):
            content = gzip.decompress(content)
        found += [orjson.loads(line) for line in content.splitlines()]
    return found


def rows(store: Store, names: list[str]) -> list[dict[str, Any]]:
    """The rows of Parquet objects, each with its path's table."""
    import pyarrow.parquet as pq

    return [row for name in names for row in pq.read_table(io.BytesIO(store.read(name))).to_pylist()]


def identities(events: list[dict[str, Any]]) -> list[Identity]:
    """Return an event's identity."""
    return [(event.get("commit_lsn") or event["lsn"], event.get("ordinal", 0)) for event in events]


@pytest.fixture(scope="session")
def read(fault: Any) -> Any:
    """The readers above, for tests."""
    return SimpleNamespace(
        entries=entries,
        listed=listed,
        data=data,
        lines=lines,
        rows=rows,
        identities=identities,
        folder=FolderStore,
        Fault=fault,
    )


@pytest.fixture
def life() -> Callable[..., Any]:
    """Open, write, flush, close: a whole life of a sink; the position that was held."""

    def live(sink: Any, source: Any, *batches: Any) -> Any:
        try:
            held = sink.open(source.context)
            for batch in batches:
                sink.write(batch)
            sink.flush()
            return held
        finally:
            sink.close()

    return live
