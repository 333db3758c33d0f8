"""Fields for dataclasses of options: each accepts text with a unit, and reads as a number. Pure.

::

    @dataclass(frozen=True)  # without slots=True, which would replace the fields
    class Options:
        max_bytes: Bytes[int] = Bytes(1024)
        timeout: Seconds[float | None] = Seconds(30.0)
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from aiorepl.durations import Duration, seconds_of
from aiorepl.sizes import Size, size_of

N = TypeVar("N")


class _Field(Generic[N]):
    def __init__(self, default: N) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> N:
        found: N = self._default if instance is None else instance.__dict__[self._name]
        return found


class Bytes(_Field[N]):
    """A size: a number of bytes, or text such as ``64MiB``."""

    def __set__(self, instance: object, value: Size | N) -> None:
        given: Any = value
        instance.__dict__[self._name] = None if given is None else size_of(self._name, given)


class Seconds(_Field[N]):
    """A duration: a number of seconds, text such as ``10s``, or a ``timedelta``."""

    def __set__(self, instance: object, value: Duration | N) -> None:
        given: Any = value
        instance.__dict__[self._name] = None if given is None else seconds_of(self._name, given)
