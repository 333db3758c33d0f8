"""Makes single events, as a sink's options specify them, for targets that store each event by itself. Pure.

::

    events = Events(format, values=values, binary="http" if binary else None)
    events.open(context.position)
    for change in batch.changes:
        for part, payload, headers in events.of(change):
            publish(routing(part), events.format.key(part), payload, headers)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal

from aiorepl.errors import ConfigurationError
from aiorepl.formats import Values, named
from aiorepl.formats.cloudevents import CloudEventsFormat
from aiorepl.formats.format import Format
from aiorepl.position import Position
from aiorepl.transactions.changes import Change

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Events:
    """The events of a sink. The options are checked at once; the name of the source follows with ``open``.

    :param chosen: the format, as ``named`` takes it.
    :param values: ``"typed"`` or ``"text"``, as for ``named``.
    :param binary: write CloudEvents in the binary mode of ``"http"`` or ``"kafka"``.
    :raises ConfigurationError: as ``named``, or ``binary`` with another format than CloudEvents.
    """

    format: Format

    def __init__(
        self,
        chosen: str | Mapping[str, Any] = "native",
        *,
        values: Values = "typed",
        binary: Literal["http", "kafka"] | None = None,
    ) -> None:
        self._named = partial(named, chosen, values=values)
        self._mode = binary
        self._use(self._named())

    def open(self, position: Position) -> None:
        """Set the name of the source, for formats that write it."""
        self._use(self._named(position=position))

    def of(self, change: Change) -> Iterator[tuple[Change, bytes, Mapping[str, str]]]:
        """Yield the events of a change, each with the part of the change to route it by, its payload and its headers.

        :raises DataError: the bytes of a column do not match its type.
        """
        for part in self.format.split(change):
            if self._binary is None:
                yield part, self.format.event(part), _NO_HEADERS
            else:
                headers, payload = self._binary(part)
                yield part, payload, headers

    def _use(self, format_: Format) -> None:
        self.format = format_
        self._binary: Callable[[Change], tuple[dict[str, str], bytes]] | None = None
        if self._mode is not None:
            if not isinstance(format_, CloudEventsFormat):
                raise ConfigurationError("binary is a mode of CloudEvents: set format = cloudevents")
            self._binary = format_.kafka if self._mode == "kafka" else format_.http
