"""A local folder as a store: what has its name is whole and fsynced, what is being written is hidden."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from aiorepl_sinks.durable import fsync, make_folder, problem, sync_folder


class Folder:
    """Files below a folder, which is made when something is written.

    :param path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self._path = path

    def put(self, name: str, data: Iterable[bytes]) -> int:
        with self._written(name, data) as partial:
            size = partial.stat().st_size
            partial.rename(self._path / name)
            return size

    def create(self, name: str, data: bytes) -> bool:
        with self._written(name, [data]) as partial:
            try:
                # A link, unlike a rename, does not replace what is there.
                os.link(partial, self._path / name)
            except FileExistsError:
                return False
            return True

    def read(self, name: str) -> bytes | None:
        with self._mapped("reading"):
            try:
                return (self._path / name).read_bytes()
            except FileNotFoundError:
                return None

    def names(self, prefix: str, after: str = "") -> list[str]:
        with self._mapped("listing"):
            found = (f"{prefix}{path.name}" for path in (self._path / prefix).glob("[!.]*"))
            return sorted(name for name in found if name > after)

    def delete(self, names: Sequence[str]) -> None:
        with self._mapped("deleting"):
            for name in names:
                target = self._path / name
                target.unlink(missing_ok=True)
                if target.parent.exists():
                    sync_folder(target.parent, self.url)

    def abort(self, names: Iterable[str]) -> None:
        with self._mapped("deleting"):
            for name in names:
                target = self._path / name
                for left in target.parent.glob(f".{target.name}-*.partial"):
                    left.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written(self, name: str, data: Iterable[bytes]) -> Iterator[Path]:
        """A file beside the target with the data, safely on disk; the caller gives it its name."""
        target = self._path / name
        with self._mapped("writing"):
            make_folder(target.parent, self.url)
            # A name of its own: another process may be writing the same one.
            partial = target.with_name(f".{target.name}-{secrets.token_hex(4)}.partial")
            try:
                with partial.open("xb", buffering=0) as file:
                    for some in data:
                        rest = memoryview(some)
                        while rest:
                            rest = rest[file.write(rest) or 0 :]
                    fsync(file.fileno(), self.url)
                yield partial
            finally:
                partial.unlink(missing_ok=True)
            sync_folder(target.parent, self.url)

    @contextlib.contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise problem(error, f"{self.url}: {doing}") from None
