"""A local folder as a store: named files are complete and fsynced, unfinished ones are hidden."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from aiorepl.durable import (
    NewFile,
    make_folder,
    remove_partials,
    require_usable_folder,
    storage_error,
    sync_folder,
)


class Folder:
    """Files below a folder, which is created by the first write.

    :param path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self._path = path

    def check(self) -> None:
        """Check that files can be written, without writing any.

        :raises TransientError, PermanentError: they cannot.
        """
        with self._translated("writing"):
            require_usable_folder(self._path)

    def put(self, name: str, data: Iterable[bytes]) -> int:
        with self._written(name, data) as new:
            new.rename(self._path / name)
            return new.size

    def create(self, name: str, data: bytes) -> bool:
        with self._written(name, [data]) as new:
            try:
                # A link, unlike a rename, does not replace an existing file.
                new.link(self._path / name)
            except FileExistsError:
                return False
            return True

    def read(self, name: str) -> bytes | None:
        with self._translated("reading"):
            try:
                return (self._path / name).read_bytes()
            except FileNotFoundError:
                return None

    def names(self, prefix: str, after: str = "") -> list[str]:
        with self._translated("listing"):
            found = (f"{prefix}{path.name}" for path in (self._path / prefix).glob("[!.]*"))
            return sorted(name for name in found if name > after)

    def delete(self, names: Sequence[str]) -> None:
        with self._translated("deleting"):
            for name in names:
                target = self._path / name
                target.unlink(missing_ok=True)
                if target.parent.exists():
                    sync_folder(target.parent)

    def abort(self, names: Iterable[str]) -> None:
        with self._translated("deleting"):
            for name in names:
                target = self._path / name
                if target.parent.exists():
                    remove_partials(target)

    @contextlib.contextmanager
    def _written(self, name: str, data: Iterable[bytes]) -> Iterator[NewFile]:
        """Write the data to a hidden file beside the target and fsync it; the caller gives it its name."""
        target = self._path / name
        with self._translated("writing"):
            make_folder(target.parent)
            new = NewFile(target)
            try:
                new.write(data)
                new.sync()
                yield new
            finally:
                new.discard()
            sync_folder(target.parent)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, f"{self.url}: {doing}") from None
