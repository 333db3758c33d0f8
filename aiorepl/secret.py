"""A wrapper for values that logs, debuggers and serializers must not show, such as a DSN with a password or a mask's key."""

from __future__ import annotations

from typing import Any, Generic, NoReturn, Self, TypeVar

T = TypeVar("T")


class Secret(Generic[T]):
    """Wraps a value that only ``reveal`` returns. It cannot be pickled; a copy is the same object."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    @classmethod
    def of(cls, value: T | Secret[T]) -> Secret[T]:
        """Wrap ``value``, unless it is a Secret."""
        return value if isinstance(value, Secret) else cls(value)

    def reveal(self) -> T:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Secret cannot be pickled: pass the DSN or key to the other process in its environment or in a file, and create "
            "the object there"
        )
