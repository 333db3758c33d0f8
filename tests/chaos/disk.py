"""Simulates a disk after a power failure: files as of their last fsync, and names as of the last fsync of their folder.

A random part of the unsynced data survives: a prefix of a file's unsynced bytes, or zeros in their place, and the first changes
of a folder's names.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Disk:
    """Records this process's file operations, and can undo the unsynced ones.

    :param shadow: a folder in the same file system, for files that were replaced or removed.
    """

    def __init__(self, shadow: Path, seed: int) -> None:
        # The original functions of the operating system, for undoing.
        self.calls: Any = os
        self._shadow = shadow
        self._shadow.mkdir(exist_ok=True)
        self._chance = random.Random(seed)
        self._count = 0
        # By inode: a duplicate descriptor, and the synced size.
        self._files: dict[int, tuple[int, int]] = {}
        # By the folder's inode: how to undo the changes of its names, in order.
        self._names: defaultdict[int, list[Callable[[], object]]] = defaultdict(list)

    def opened(self, descriptor: int, path: Path | str, *, created: bool) -> None:
        """A file is open for writing."""
        inode = os.fstat(descriptor).st_ino
        if inode not in self._files:
            self._files[inode] = os.dup(descriptor), 0 if created else os.fstat(descriptor).st_size
        if created:
            self._changed(path, lambda: self._remove(path))

    def synced(self, descriptor: int) -> None:
        """A file or a folder was synced."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._names.pop(status.st_ino, None)
        elif status.st_ino in self._files:
            self._files[status.st_ino] = self._files[status.st_ino][0], status.st_size

    def closed(self, inode: int) -> None:
        """A file was closed: forget it if all of it was synced."""
        if inode in self._files:
            descriptor, size = self._files[inode]
            if os.fstat(descriptor).st_size == size:
                os.close(descriptor)
                del self._files[inode]

    def renames(self, source: Path | str, target: Path | str) -> None:
        """A name is about to be changed."""
        replaced = self._kept(target)

        def undo() -> None:
            self.calls.rename(target, source)
            if replaced is not None:
                self.calls.link(replaced, target)

        self._changed(target, undo)

    def links(self, target: Path | str) -> None:
        """A name is about to be added, of a file or a folder."""
        self._changed(target, lambda: self._remove(target))

    def unlinks(self, path: Path | str) -> None:
        """A name is about to be removed."""
        kept = self._kept(path)
        if kept is not None:
            self._changed(path, lambda: self.calls.link(kept, path))

    def fail(self) -> None:
        """Undo a random part of the unsynced operations."""
        for descriptor, synced in self._files.values():
            size = os.fstat(descriptor).st_size
            if size > synced:
                there = self._chance.randint(synced, size)
                os.truncate(descriptor, there)
                if self._chance.random() < 0.3:
                    os.truncate(descriptor, size)  # as zeros
        for changes in self._names.values():
            lost = self._chance.randint(0, len(changes))
            for undo in reversed(changes[len(changes) - lost :]):
                with contextlib.suppress(OSError):
                    undo()

    def _changed(self, path: Path | str, undo: Callable[[], object]) -> None:
        self._names[Path(path).parent.stat().st_ino].append(undo)

    def _kept(self, path: Path | str) -> Path | None:
        """Keep a file under another name, if it exists."""
        self._count += 1
        kept = self._shadow / f"{os.getpid()}-{self._count}"
        try:
            self.calls.link(path, kept)
        except OSError:
            return None
        return kept

    def _remove(self, path: Path | str) -> None:
        if Path(path).is_dir():
            Path(path).rmdir()
        else:
            self.calls.unlink(path)
