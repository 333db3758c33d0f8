"""The names of a history's files and folders. Pure.

    history.json                                    what there is: the one commit point
    _tables/<folder>-<epoch>-<number>.json          the files of one table
    _pending/<epoch>-<number>.parquet               rows that are not yet enough for a file of their own
    <schema>.<table>/<LSN>-<ordinal>.parquet        rows of a table, from the change at this position on
    messages/<LSN>-<ordinal>.parquet                logical decoding messages

Engines skip names that begin with an underscore, so a pattern like ``public.orders/*.parquet`` matches each row once.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from aiorepl.lsn import LSN

FOLDER: Final = "history"
"""The history's folder, within the journal's folder."""
HISTORY: Final = "history.json"
TABLES: Final = "_tables"
PENDING: Final = "_pending"
MESSAGES: Final = "messages"

# Characters without a special meaning in URLs, Hive partitions (a=b), patterns and object stores.
_PLAIN: Final = re.compile(rb"[A-Za-z0-9_-]")
_MAX_FOLDER: Final = 200
_PENDING_NAME: Final = re.compile(r"([0-9A-F]{8})-([0-9A-F]{8})\.parquet")
_TABLE_NAME: Final = re.compile(r"(.+)-([0-9A-F]{8})-([0-9A-F]{8})\.json")


def folder_of(schema: str, table: str) -> str:
    """Return the folder of a table: ``schema.table``, with ``~`` and two hexadecimal digits for each unusual byte.

    A name of more than 200 characters ends in a digest.
    """
    name = f"{_escaped(schema)}.{_escaped(table)}"
    if name.startswith("_"):
        name = f"~5F{name[1:]}"  # engines would skip such a folder
    if len(name) <= _MAX_FOLDER:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{name[: _MAX_FOLDER - 18]}~~{digest}"


def pending_name(epoch: int, number: int) -> str:
    """Return the name of a file of pending rows."""
    return f"{PENDING}/{epoch:08X}-{number:08X}.parquet"


def parse_pending(name: str) -> tuple[int, int] | None:
    """Return epoch and number of a name within the folder of pending files; ``None`` for another file."""
    match = _PENDING_NAME.fullmatch(name)
    return None if match is None else (int(match[1], 16), int(match[2], 16))


def published_name(folder: str, first: tuple[int, int]) -> str:
    """Return the name of a file whose first row has this commit LSN and ordinal, which no other file of the table has.

    Only the two rows of an update of the key share a position, and these two are always in one file.
    """
    return f"{folder}/{first[0]:016X}-{first[1]:010X}.parquet"


def table_name(folder: str, epoch: int, number: int) -> str:
    """Return the name of a list of a table's files."""
    return f"{TABLES}/{folder}-{epoch:08X}-{number:08X}.json"


def parse_table(name: str) -> tuple[str, int] | None:
    """Return folder and epoch of a name within the folder of lists; ``None`` for another file."""
    match = _TABLE_NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2], 16))


def position_text(position: tuple[int, int]) -> str:
    """Return the position of a change as text, for error messages."""
    return f"{LSN(position[0])}, ordinal {position[1]}"


def _escaped(part: str) -> str:
    return "".join(
        chr(byte) if _PLAIN.fullmatch(bytes((byte,))) else f"~{byte:02X}" for byte in part.encode()
    )
