"""The format of small files: a line of JSON, then a line with its CRC-32. Pure.

``unseal`` is the only way to read one. It verifies the checksum, the format number and, through the caller's function,
every field.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import orjson

from aiorepl.errors import AioreplError, DamagedJournal, JournalError
from aiorepl.lsn import LSN

FORMAT: Final = 3
"""The format number of a journal's files. A file with another number is refused."""

checksum: Final = zlib.crc32

_UINT64: Final = 2**64 - 1

T = TypeVar("T")


def seal(fields: Mapping[str, Any]) -> bytes:
    """Make the bytes of a file with these fields."""
    body = orjson.dumps({"format": FORMAT, **fields})
    return b"%b\n%08x\n" % (body, checksum(body))


def unseal(
    data: bytes,
    location: str,
    read: Callable[[Mapping[str, Any]], T],
    *,
    remedy: str | None = None,
    advice: str | None = None,
) -> T:
    """Verify the output of ``seal`` and return ``read(fields)``.

    :param location: the file, for errors.
    :param read: parses the fields; any exception that it raises becomes a DamagedJournal.
    :param remedy: what to do about a damaged file, instead of the default text.
    :param advice: what to do about a file of another format, instead of the default text.
    :raises JournalError: the file is damaged, or has another format.
    """
    body, _, rest = data.partition(b"\n")
    if rest != b"%08x\n" % checksum(body):
        # Format 1 had no checksum in most files.
        if not rest and _format_of(body) == 1:
            raise _other_format(location, 1, advice)
        raise DamagedJournal(f"{location} is damaged: its checksum does not match", remedy)
    try:
        fields = orjson.loads(body)
        if fields["format"] == FORMAT:
            return read(fields)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, AioreplError) as error:
        raise DamagedJournal(f"{location} is damaged: {_text_of(error)}", remedy) from None
    raise _other_format(location, fields["format"], advice)


def integer(fields: Mapping[str, Any], name: str, most: int = _UINT64) -> int:
    """Return the field ``name``, a whole number from 0 to ``most``.

    :raises ValueError: the field is something else.
    """
    value = fields[name]
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is not a number from 0 to {most}")
    return value


def text(fields: Mapping[str, Any], name: str) -> str:
    """Return the field ``name``, a string.

    :raises TypeError: the field is something else.
    """
    return _of_type(fields, name, str, "string")


def boolean(fields: Mapping[str, Any], name: str) -> bool:
    """Return the field ``name``, a Boolean.

    :raises TypeError: the field is something else.
    """
    return _of_type(fields, name, bool, "Boolean")


def lsn(fields: Mapping[str, Any], name: str) -> LSN:
    """Return the field ``name``, an LSN.

    :raises ValueError: the field is something else.
    """
    return LSN.parse(text(fields, name))


def _of_type(fields: Mapping[str, Any], name: str, kind: type[T], what: str) -> T:
    if not isinstance(value := fields[name], kind):
        raise TypeError(f"{name} is not a {what}")
    return value


def _format_of(body: bytes) -> Any:
    try:
        return orjson.loads(body)["format"]
    except (LookupError, TypeError, ValueError):
        return None


def _other_format(location: str, found: object, advice: str | None) -> JournalError:
    advice = advice or (
        "Let every consumer finish with the version that wrote the journal, or start with an empty journal and "
        "resnapshot=True (--resnapshot)"
    )
    return JournalError(f"{location} has format {found}; this version reads format {FORMAT}. {advice}")


def _text_of(error: Exception) -> str:
    return f"it has no field {error}" if isinstance(error, KeyError) else str(error)
