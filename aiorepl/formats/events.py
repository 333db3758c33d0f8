"""Single events as the options of a sink specify, for targets that store each event by itself. Pure.

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
from aiorepl.formats import named
from aiorepl.formats.cloudevents import CloudEventsFormat
from aiorepl.formats.format import Format
from aiorepl.position import Position
from aiorepl.transactions.changes import Change

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Events:
    """The events of a sink. Options that cannot work are refused at once; whose events they are is said later.

    :param chosen: the format, as ``named`` takes it.
    :param values: ``"typed"`` or ``"text"``, as for ``named``.
    :param binary: CloudEvents in binary mode, as the binding to this protocol has it: ``"http"`` or ``"kafka"``.
    :raises ConfigurationError: as ``named``; also for ``binary`` with another format.
    """

    format: Format

    def __init__(
        self,
        chosen: str | Mapping[str, Any] = "native",
        *,
        values: str = "typed",
        binary: Literal["http", "kafka"] | None = None,
    ) -> None:
        self._named = partial(named, chosen, values=values)
        self._mode = binary
        self._use(self._named())

    def open(self, position: Position) -> None:
        """Call the source by its name, in formats that name it."""
        self._use(self._named(position=position))

    def of(self, change: Change) -> Iterator[tuple[Change, bytes, Mapping[str, str]]]:
        """The events of a change: of what each is, which routings and keys go by; the event; in binary mode its headers.

        :raises DataError: when a column's bytes are not what its type says.
        """
        for part in self.format.split(change):
            if self._binary is None:
                yield part, self.format.event(part), _NO_HEADERS
            else:
                headers, payload = self._binary(part)
                yield part, payload, headers

    def _use(self, form: Format) -> None:
        self.format = form
        self._binary: Callable[[Change], tuple[dict[str, str], bytes]] | None = None
        if self._mode is not None:
            if not isinstance(form, CloudEventsFormat):
                raise ConfigurationError("binary is a mode of CloudEvents: set format = cloudevents")
            self._binary = form.kafka if self._mode == "kafka" else form.http
