"""Reads and verifies the bytes of blocks in a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from aiorepl.errors import DamagedJournal
from aiorepl.journal.index import Block
from aiorepl.journal.segment_format import MAGIC
from aiorepl.storage.checked_json import checksum
from aiorepl.storage.store import Store

LARGE_BLOCK: Final = 4 * 1024 * 1024
"""The size from which a block is large, in bytes."""


def adjacent(blocks: Iterable[Block], most: int) -> Iterator[list[Block]]:
    """Group blocks that follow each other in their file, up to ``most`` bytes together; at least one."""
    group: list[Block] = []
    for block in blocks:
        if group:
            first, last = group[0], group[-1]
            follows = block.offset == last.offset + last.length
            if not follows or block.offset + block.length - first.offset > most:
                yield group
                group = []
        group.append(block)
    if group:
        yield group


def read_block(store: Store, file: str, block: Block) -> bytes:
    """Read and verify the bytes of a block; errors as ``read_blocks``."""
    return next(read_blocks(store, file, (block,)))


def read_blocks(store: Store, file: str, blocks: Sequence[Block]) -> Iterator[bytes]:
    """Read adjacent blocks at once, and yield the bytes of each, verified. Keeps no reference to the bytes of the last block.

    :raises JournalError: the block is damaged or missing; the message names file and block.
    :raises OSError: the file cannot be read.
    """
    first, last = blocks[0], blocks[-1]
    begins = first.offset == len(MAGIC)
    # The first block is read together with the magic number before it, unless it is large: removing the number copies the block.
    together = begins and first.length < LARGE_BLOCK
    start = 0 if together else first.offset
    with unless_missing(store, file):
        data = store.read(file, start, last.offset + last.length - start)
        if together:
            require_magic(store, file, data[: len(MAGIC)])
        elif begins:
            require_magic(store, file, store.read(file, 0, len(MAGIC)))
    for block in blocks:
        offset = block.offset - start
        content = data[offset : offset + block.length]
        if len(content) != block.length or checksum(content) != block.checksum:
            raise wrong_checksum(store, file, block)
        if block is last:
            del data
        ready = [content]
        del content
        yield ready.pop()


@contextmanager
def unless_missing(store: Store, file: str) -> Iterator[None]:
    """Translate the error for a missing file."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedJournal(f"{file} in the journal {store.url} is missing") from error


def require_magic(store: Store, file: str, begin: bytes) -> None:
    """Check the magic number of a segment.

    :param begin: the first bytes of the file.
    :raises DamagedJournal: the magic number is wrong.
    """
    if begin != MAGIC:
        raise DamagedJournal(
            f"{file} in the journal {store.url} is damaged: it does not start like a segment"
        )


def wrong_checksum(store: Store, file: str, block: Block) -> DamagedJournal:
    """Return the error for a block whose checksum does not match."""
    return DamagedJournal(f"{location(store, file, block)} is damaged: its checksum does not match")


def location(store: Store, file: str, block: Block) -> str:
    """Name a block in a message."""
    return f"the block at {block.offset} of {file} in the journal {store.url}"
