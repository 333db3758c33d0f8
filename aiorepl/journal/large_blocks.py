"""Reads large blocks message by message, and shares the messages among the readers of this process.

A block is large because it has a large row. Reading the whole block and then cutting out its messages would copy that row, and each
sink has its own reader: with three sinks, the row would be in memory six times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from aiorepl.journal.index import Block
from aiorepl.journal.segment_format import MAGIC
from aiorepl.journal.stored_blocks import require_magic, unless_missing, wrong_checksum
from aiorepl.storage.checked_json import checksum
from aiorepl.storage.store import Store

# Small messages of a block are read together, in windows of this size. Each large message is read alone.
_WINDOW_BYTES: Final = 1024 * 1024
_LENGTH_BYTES: Final = 4


class LargeBlock:
    """The verified messages of a block. They are read once for all readers that hold this object."""

    __slots__ = ("__weakref__", "_lock", "_payloads")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._payloads: list[bytes] | None = None

    def payloads(self, read: Callable[[], list[bytes]]) -> list[bytes]:
        """Return the messages.

        :param read: reads and verifies the messages. If it raises an error, the next call reads again.
        """
        with self._lock:
            if self._payloads is None:
                self._payloads = read()
            return self._payloads


_blocks: WeakValueDictionary[tuple[str, str, int, int, int], LargeBlock] = WeakValueDictionary()
_blocks_lock = threading.Lock()


def large_block(store: Store, file: str, block: Block) -> LargeBlock:
    """Return the block that other readers hold, or a new one."""
    key = store.url, file, block.offset, block.length, block.checksum
    with _blocks_lock:
        return _blocks.setdefault(key, LargeBlock())


def read_payloads(store: Store, file: str, block: Block) -> list[bytes]:
    """Read and verify the messages of a block, with one copy of each in memory.

    :raises DamagedJournal: the block is damaged or missing; the message names file and block.
    :raises OSError: the file cannot be read.
    """
    with unless_missing(store, file):
        if block.offset == len(MAGIC):
            require_magic(store, file, store.read(file, 0, len(MAGIC)))
        payloads = _read_payloads(store, file, block)
    if payloads is None:
        raise wrong_checksum(store, file, block)
    return payloads


def _read_payloads(store: Store, file: str, block: Block) -> list[bytes] | None:
    """Read the messages of a block; ``None`` if the block is damaged."""
    payloads: list[bytes] = []
    found, at, end = 0, block.offset, block.offset + block.length
    while at < end:
        window = store.read(file, at, min(_WINDOW_BYTES, end - at))
        whole = _append_whole(payloads, window)
        found = checksum(memoryview(window)[:whole], found)
        at += whole
        head = window[whole : whole + _LENGTH_BYTES]
        length = int.from_bytes(head, "big")
        if at == end or (whole and (len(head) < _LENGTH_BYTES or length < _WINDOW_BYTES // 2)):
            continue
        # The next message is large, or its length exceeds the block.
        if len(head) < _LENGTH_BYTES or at + _LENGTH_BYTES + length > end:
            return None
        payloads.append(store.read(file, at + _LENGTH_BYTES, length))
        found = checksum(payloads[-1], checksum(head, found))
        at += _LENGTH_BYTES + length
    return payloads if found == block.checksum else None


def _append_whole(payloads: list[bytes], window: bytes) -> int:
    """Append the messages that are complete in the window, and return the offset of their end."""
    at = 0
    while (start := at + _LENGTH_BYTES) <= len(window):
        end = start + int.from_bytes(window[at:start], "big")
        if end > len(window):
            break
        payloads.append(window[start:end])
        at = end
    return at
