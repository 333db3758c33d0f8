"""The folder of a Delta table: its data files, and the entries of its log. Can be pickled; does not use Spark.

A local table is written with the process's umask, because other users and programs read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from aiorepl.durable import fsync, sync_folder
from aiorepl.errors import ConfigurationError
from aiorepl.storage.objects.client import ObjectClient
from aiorepl.storage.objects.location import SCHEMES, ObjectStore
from aiorepl.storage.opening import Location

LOG: Final = "_delta_log"
_OF_DELTALAKE: Final = ("allow_http", "unsafe_rename", "locking_provider", "conditional_put", "dynamo")
"""Parts of the names of deltalake's own options, which obstore does not know."""

# deltalake decodes "%", takes "\\" for "/", and fails with internal errors of Rust for the other characters.
_UNSUITABLE: Final = re.compile(r"[\x00-\x1f\x7f%\\\[\]^|]")


@dataclass(frozen=True)
class DeltaFolder:
    """The folder of one table.

    :param target: the table's path or URI.
    :param storage: deltalake's options, if the table is in an object store; may contain credentials.
    :raises ConfigurationError: the path of a local folder has a character that deltalake cannot use.
    """

    target: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self._local is not None and (found := _UNSUITABLE.search(str(self._local.absolute()))):
            raise ConfigurationError(
                f"Delta tables cannot be in the folder {str(self._local)!r}: deltalake takes no path with {found[0]!r}: choose a folder "
                "whose path does not have this character"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"target": self.target, "storage": self.storage}

    @property
    def options(self) -> dict[str, str] | None:
        return None if self.storage is None else dict(self.storage)

    def open(self, path: str) -> Any:
        """Open a file for reading.

        :param path: relative to the table, or a URI, not encoded.
        """
        if self._local is not None:
            return pa.memory_map(str(self._local_path(path)), "r")
        if "://" in path:
            folder, _, name = path.rpartition("/")
            return DeltaFolder(folder, self.storage).open(name)
        return self._remote.open_input_file(path)

    @contextmanager
    def creating(self, name: str) -> Iterator[Any]:
        """Open a new file for writing. It is durable after the context."""
        if self._local is None:
            with self._remote.open_output_stream(name) as out:
                yield out
            return
        path = self._local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as out:
            yield out
        _fsync(path)
        for each in Path(name).parents[:-1]:
            sync_folder(self._local / each)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        if self._local is not None:
            return (self._local / name).stat().st_size
        size: int = self._remote.get_file_info(name).size
        return size

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; missing ones are ignored."""
        for name in names:
            with suppress(FileNotFoundError):
                if self._local is not None:
                    (self._local / name).unlink()
                else:
                    self._remote.delete_file(name)

    def files(self) -> Iterator[tuple[str, float]]:
        """Yield the files of the table, with the times of their last writes in seconds since 1970.

        Folders and files whose name begins with a dot or an underscore are left out, unless the folder is a partition's.
        """
        if self._local is not None:
            for folder, folders, names in os.walk(self._local):
                folders[:] = filter(_is_visible, folders)
                for path in (Path(folder, name) for name in names if _is_visible(name)):
                    yield str(path.relative_to(self._local)), path.stat().st_mtime
            return
        for info in self._remote.get_file_info(FileSelector("", recursive=True)):
            if info.type == FileType.File and all(map(_is_visible, info.path.split("/"))):
                yield info.path, info.mtime_ns / 1e9

    def entries(self) -> list[str]:
        """List the names in the log; empty if there is none."""
        if self._local is not None:
            folder = self._local / LOG
            return [each.name for each in folder.iterdir()] if folder.is_dir() else []
        return self._client.folder(LOG)

    def entry(self, name: str) -> bytes:
        """Read a file of the log.

        :raises FileNotFoundError: there is none.
        """
        if self._local is not None:
            return (self._local / LOG / name).read_bytes()
        data = self._client.read(f"{LOG}/{name}")
        if data is None:
            raise FileNotFoundError(name)
        return data

    def create_entry(self, name: str, data: bytes) -> bool:
        """Write a file of the log durably, unless one with this name exists. Return whether this call wrote it.

        :param data: must differ from the data of every other process.
        """
        if self._local is None:
            path = f"{LOG}/{name}"
            # An existing file may be this call's own, if the store's answer to an attempt was lost.
            return self._client.create(path, data) is not None or self._client.read(path) == data
        folder = self._local / LOG
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"_{uuid4().hex}.tmp"
        try:
            with new.open("xb") as out:
                out.write(data)
                out.flush()
                fsync(out.fileno())
            sync_folder(self._local)
            try:
                (folder / name).hardlink_to(new)
            except FileExistsError:
                return False
        finally:
            new.unlink(missing_ok=True)
        sync_folder(folder)
        return True

    @cached_property
    def _local(self) -> Path | None:
        if self.target.startswith("file:"):
            return Path(unquote(urlsplit(self.target).path))
        return None if "://" in self.target else Path(self.target)

    def _local_path(self, path: str) -> Path:
        if path.startswith("file:"):
            return Path(unquote(urlsplit(path).path))
        assert self._local is not None
        return self._local / path

    @cached_property
    def _remote(self) -> PyFileSystem:
        return PyFileSystem(DeltaStorageHandler(self.target, self.options))

    @cached_property
    def _client(self) -> ObjectClient:
        found = location(self.target, self.storage)
        return ObjectClient(found if isinstance(found, ObjectStore) else ObjectStore(self.target))


def location(url: str, storage: Mapping[str, str] | None) -> Location:
    """Return the location of a path or URL.

    :param storage: options in deltalake's format, for an object store.
    """
    if urlsplit(url).scheme not in SCHEMES:
        return url
    config = {
        key.lower(): value
        for key, value in (storage or {}).items()
        if not any(each in key.lower() for each in _OF_DELTALAKE)
    }
    return ObjectStore(url, config)


def _is_visible(name: str) -> bool:
    return not name.startswith((".", "_")) or "=" in name


def _fsync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        fsync(opened)
    finally:
        os.close(opened)
