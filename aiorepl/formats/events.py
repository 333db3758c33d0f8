"""Makes single events, as a sink's options specify them, for targets that store each event by itself.

::

    events = Events(format, values=values, binary="http" if binary else None)
    events.open(context.position)
    await events.prepare(batch.changes, routing)
    for change in batch.changes:
        for part, copies in events.of(change, routing):
            for destination, payload, headers in copies:
                publish(destination, events.key(part, destination), payload, headers)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal

from aiorepl.errors import ConfigurationError
from aiorepl.formats import Values, named
from aiorepl.formats.format import NO_HEADERS, Format
from aiorepl.formats.routing import Routing
from aiorepl.position import Position
from aiorepl.transactions.changes import Change

Route = Callable[[Change], Iterable[str]]
"""Returns the topics, subjects or streams of a change."""

_BY_TABLE: Final = Routing("{schema}.{table}")


class Events:
    """The events of a sink. The options are checked at once; the name of the source follows with ``open``.

    :param chosen: the format, as ``named`` takes it.
    :param values: ``"typed"`` or ``"text"``, as for ``named``.
    :param binary: write CloudEvents in the binary mode of ``"http"`` or ``"kafka"``.
    :raises ConfigurationError: as ``named``, or ``binary`` with another format than CloudEvents.
    """

    def __init__(
        self,
        chosen: str | Mapping[str, Any] = "native",
        *,
        values: Values = "typed",
        binary: Literal["http", "kafka"] | None = None,
    ) -> None:
        if binary is not None:
            options = {"type": chosen} if isinstance(chosen, str) else chosen
            if options.get("type") != "cloudevents":
                raise ConfigurationError("binary is a mode of CloudEvents: set format = cloudevents")
            chosen = {**options, "binary": binary}
        self._named = partial(named, chosen, values=values)
        self._use(self._named())

    def open(self, position: Position) -> None:
        """Give the source's name to a format that writes it."""
        self._use(self._named(position=position))

    def _use(self, form: Format) -> None:
        self.format = form
        self._same_everywhere = type(form).to is Format.to
        self._has_headers = type(form).headers is not Format.headers

    async def prepare(self, changes: Iterable[Change], route: Route | None = None) -> None:
        """Let the format do its I/O for the events of ``changes``, such as registering schemas. Call this before ``of``.

        :raises TransientError: the same call may succeed later.
        :raises PermanentError: a change has no event.
        """
        form = self.format
        if self._same_everywhere and type(form).prepare is Format.prepare:
            return
        for change in changes:
            for part in form.split(change):
                for destination in (route or _table)(part):
                    await form.to(destination).prepare(part)

    def of(
        self, change: Change, route: Route | None = None
    ) -> Iterator[tuple[Change, list[tuple[str, bytes, Mapping[str, str]]]]]:
        """Yield each part of a change that has an event, and a list with destination, payload and headers for each destination.

        :param route: returns the destinations of a part; ``None``, for a target without destinations: each part has one event.
        :raises DataError: the bytes of a column do not match its type.
        """
        form = self.format
        if self._same_everywhere:
            for part in form.split(change):
                payload = form.event(part)
                headers = form.headers(part) if self._has_headers else NO_HEADERS
                if route is None:
                    yield part, [("", payload, headers)]
                else:
                    yield part, [(destination, payload, headers) for destination in route(part)]
            return
        for part in form.split(change):
            copies: list[tuple[str, bytes, Mapping[str, str]]] = []
            made: dict[Format, tuple[bytes, Mapping[str, str]]] = {}
            for destination in (route or _table)(part):
                form = self.format.to(destination)
                if form not in made:
                    made[form] = form.event(part), form.headers(part)
                copies.append((destination, *made[form]))
            yield part, copies

    def key(self, part: Change, destination: str) -> bytes | None:
        """Return the key of an event that ``of`` yielded; ``None`` without a key."""
        form = self.format if self._same_everywhere else self.format.to(destination)
        return form.key(part)


def _table(part: Change) -> tuple[str, ...]:
    return _BY_TABLE(part)[:1]
