"""Reads the log of a Delta table: its columns, its data files with their deletion vectors, and its transaction identifiers.

deltalake does not return the descriptors of deletion vectors, which a commit that changes a file's vector needs.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from aiorepl.errors import ConfigurationError
from aiorepl.spark.lake import delta_vectors
from aiorepl.spark.lake.delta_folder import LOG, DeltaFolder

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_ACTIONS: Final = ("txn", "add", "metaData", "protocol")

_MAPS: Final = ("partitionValues", "configuration", "options", "tags")

Action = dict[str, Any]


@dataclass(frozen=True)
class DataFile:
    """A data file of a version.

    :param add: the file's add action.
    """

    add: Mapping[str, Any]

    @property
    def path(self) -> str:
        """The file's path relative to the table, or its URI."""
        return unquote(self.add["path"])

    @property
    def vector(self) -> delta_vectors.Descriptor | None:
        """The descriptor of the file's deletion vector; ``None`` if it has none."""
        found: Mapping[str, Any] | None = self.add.get("deletionVector")
        return found

    @property
    def identity(self) -> tuple[str, str | None]:
        """The identity of the file in the log: its path and its vector. With another vector, the log lists another file."""
        return self.add["path"], delta_vectors.identity(self.vector)

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        return int(self.add["size"])

    @property
    def rows(self) -> int:
        """The number of the file's rows, including deleted ones; 0 if it is unknown."""
        return int(self.statistics.get("numRecords") or 0)

    @property
    def partition(self) -> tuple[tuple[str, str | None], ...]:
        """The columns and values of the file's partition."""
        return tuple(sorted((self.add.get("partitionValues") or {}).items()))

    @cached_property
    def statistics(self) -> Mapping[str, Any]:
        """The file's statistics; empty if there are none."""
        text = self.add.get("stats")
        return json.loads(text) if text else {}

    def removed(self, now: int, *, data_change: bool = True) -> Action:
        """Return the action that removes the file.

        :param now: milliseconds since 1970.
        """
        names = ("path", "partitionValues", "size", "tags", "deletionVector", "baseRowId")
        kept = {name: self.add[name] for name in names if self.add.get(name) is not None}
        return {
            "remove": {
                **kept,
                "deletionTimestamp": now,
                "dataChange": data_change,
                "extendedFileMetadata": True,
            }
        }


@dataclass(frozen=True)
class Snapshot:
    """One version of a table.

    :param files: the data files, by identity.
    :param transactions: by application, the version of its last transaction.
    :param checksum: the checksum of the version's entry in the log; ``None`` if only a checkpoint has the version.
    """

    folder: DeltaFolder
    version: int = -1
    checksum: int | None = None
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[tuple[str, str | None], DataFile] = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: DeltaFolder, version: int | None = None) -> Self | None:
        """Read a version, by default the newest; ``None`` if there is no table.

        :raises ConfigurationError: the log lacks entries, or has an unknown form.
        """
        names = folder.entries()
        entries = [int(match[1]) for name in names if (match := _ENTRY.fullmatch(name))]
        checkpoints = _checkpoints(names)
        if not entries and not checkpoints:
            return None
        last = max([*entries, *checkpoints]) if version is None else version
        start = max((each for each in checkpoints if each <= last), default=None)
        found = cls(folder)
        if start is not None:
            found = replace(found, version=start)._after(start, _of_checkpoint(folder, checkpoints[start]))
        for number in range(found.version + 1, last + 1):
            try:
                found = found._next()
            except FileNotFoundError:
                raise ConfigurationError(
                    f"the log of the Delta table {folder.target} has no entry {number}: another program has deleted it, or has written "
                    "a checkpoint of an unknown form"
                ) from None
        return found

    def newest(self) -> Self:
        """Return the newest version, found by following the log from this version on."""
        found = self
        while True:
            try:
                found = found._next()
            except FileNotFoundError:
                return found

    def is_there(self) -> bool:
        """Whether the log still has this version. It has not if the table was deleted, or replaced by another copy."""
        try:
            data = self.folder.entry(entry_name(self.version))
        except FileNotFoundError:
            return False
        return zlib.crc32(data) == self.checksum

    def _next(self) -> Self:
        data = self.folder.entry(entry_name(self.version + 1))
        return replace(self._after(self.version + 1, _parse(data)), checksum=zlib.crc32(data))

    @cached_property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return pa.schema(Schema.from_json(self.metadata["schemaString"]))

    @property
    def partitions(self) -> list[str]:
        """The names of the columns by which the table is partitioned."""
        return list(self.metadata.get("partitionColumns") or ())

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self.metadata.get("configuration") or {})

    def _after(self, version: int, actions: Iterator[Action]) -> Self:
        protocol, metadata = self.protocol, self.metadata
        files, transactions = dict(self.files), dict(self.transactions)
        for action in actions:
            if (add := action.get("add")) is not None:
                file = DataFile(add)
                files[file.identity] = file
            elif (removed := action.get("remove")) is not None:
                files.pop(DataFile(removed).identity, None)
            elif (txn := action.get("txn")) is not None:
                transactions[txn["appId"]] = txn["version"]
            elif action.get("metaData") is not None:
                metadata = action["metaData"]
            elif action.get("protocol") is not None:
                protocol = action["protocol"]
        return replace(
            self,
            version=version,
            protocol=protocol,
            metadata=metadata,
            files=files,
            transactions=transactions,
        )


def entry_name(version: int) -> str:
    return f"{version:020d}.json"


def commits(folder: DeltaFolder) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the versions of a table and their ``commitInfo``, newest first, as far back as the log reaches."""
    numbers = (int(found[1]) for name in folder.entries() if (found := _ENTRY.fullmatch(name)))
    for number in sorted(numbers, reverse=True):
        try:
            yield number, commit_info(folder, number)
        except FileNotFoundError:
            return


def commit_info(folder: DeltaFolder, version: int) -> Mapping[str, Any]:
    """Return the ``commitInfo`` of a version; empty if it has none."""
    for line in folder.entry(entry_name(version)).splitlines():
        # ``commitInfo`` is usually the first or the last action, and other actions may be large.
        if b'"commitInfo"' in line and (found := json.loads(line).get("commitInfo")) is not None:
            info: Mapping[str, Any] = found
            return info
    return {}


def _checkpoints(names: list[str]) -> dict[int, list[str]]:
    """Return the files of each complete checkpoint."""
    found: dict[int, list[str]] = {}
    for name in names:
        if (match := _CHECKPOINT.fullmatch(name)) is None:
            continue
        version, part, count = match.groups()
        if part is None:
            found[int(version)] = [name]
        elif len(
            parts := [each for each in names if each[:31] == name[:31] and each.endswith(f".{count}.parquet")]
        ) == int(count):
            found.setdefault(int(version), sorted(parts))
    return found


def _of_checkpoint(folder: DeltaFolder, names: list[str]) -> Iterator[Action]:
    for name in names:
        with folder.open(f"{LOG}/{name}") as opened:
            file = pq.ParquetFile(opened)
            present = [each for each in _ACTIONS if each in file.schema_arrow.names]
            for batch in file.iter_batches(columns=present):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    yield {key: _plain(value) for key, value in row.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return a checkpoint's action in the form of the log's JSON, without null fields."""
    if not isinstance(value, dict):
        return value
    return {key: each if key in _MAPS else _plain(each) for key, each in value.items() if each is not None}


def actions_of(folder: DeltaFolder, version: int) -> Iterator[Action]:
    """Return the actions of a version.

    :raises FileNotFoundError: the log does not have it any longer.
    """
    return _parse(folder.entry(entry_name(version)))


def _parse(data: bytes) -> Iterator[Action]:
    return (json.loads(line) for line in data.splitlines() if line.strip())
