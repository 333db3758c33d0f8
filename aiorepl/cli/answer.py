"""Reads JSON that another version may have written: values that are missing or of another type are unknown, and are listed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_MOST: Final = 2**64
_NULL: Final = object()


class Answer:
    """A JSON object. A value that is unknown, because it is null, missing or of another type, reads as ``None`` or as empty.

    :param path: the names that lead to this object.
    :param missing: the paths of values that are missing or of another type; shared with all objects inside.
    """

    def __init__(self, value: Any, path: str = "", missing: dict[str, None] | None = None) -> None:
        self._value = value if isinstance(value, dict) else {}
        self._path = path
        self.missing = {} if missing is None else missing

    def __bool__(self) -> bool:
        return bool(self._value)

    def has(self, name: str) -> bool:
        """Whether there is a value of this name, which may be null."""
        return name in self._value

    def names(self) -> list[str]:
        """Return the names of all values."""
        return list(self._value)

    def text(self, name: str) -> str | None:
        """Return a text."""
        found = self._get(name, str)
        return None if found is _NULL else str(found)

    def number(self, name: str, most: float = _MOST) -> float | None:
        """Return a number, unless it is larger than ``most``."""
        found = self._get(name, (int, float))
        if found is _NULL:
            return None
        if not abs(found) <= most:  # also NaN
            self._note(name)
            return None
        number: float = found
        return number

    def truth(self, name: str) -> bool:
        """Return whether a value is true."""
        return self._get(name, bool) is True

    def part(self, name: str) -> Answer:
        """Return an object; an empty one if it is unknown."""
        return Answer(self._get(name, dict), self._below(name), self.missing)

    def parts(self, name: str) -> list[Answer]:
        """Return the objects of an array."""
        return [Answer(each, self._below(name), self.missing) for each in self._items(name)]

    def texts(self, name: str) -> list[str]:
        """Return the texts of an array."""
        return [each for each in self._items(name) if isinstance(each, str)]

    def numbers(self, name: str) -> list[float | None]:
        """Return the numbers of an array, ``None`` for every other item."""
        return [each if _is_number(each) and abs(each) <= _MOST else None for each in self._items(name)]

    def _items(self, name: str) -> Iterator[Any]:
        found = self._get(name, list)
        return iter(()) if found is _NULL else iter(found)

    def _get(self, name: str, kind: type | tuple[type, ...]) -> Any:
        if not self._value and self._path:
            return _NULL  # the object itself is unknown
        found = self._value.get(name, _NULL)
        if found is None:
            return _NULL
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            self._note(name)
            return _NULL
        return found

    def _note(self, name: str) -> None:
        self.missing[self._below(name)] = None

    def _below(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
