"""Calls a user's handlers: coroutine functions for tables and kinds of changes.

    router = Router()

    @router.on("public.orders", kind="insert", into=Order)
    async def placed(order: Order, change: Insert) -> None: ...

    pipeline = Pipeline(source, {"orders": router})

A router is a sink: a batch is durable once its handlers have returned, so a handler that returns early loses its change if the process
ends. A change is handled at least once. Without a pipeline, ``handle`` calls the handlers of one change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Final, Literal, TypeVar, get_args, overload

from aiorepl.errors import ConfigurationError, DataError, PermanentError
from aiorepl.sink import Batch, Sink
from aiorepl.source.catalog.tables import Name
from aiorepl.suggestions import suggestion
from aiorepl.transactions.changes import Change, Delete, Insert, Message, Read, RowChange, Truncate, Update
from aiorepl.transactions.models import model_of
from aiorepl.transactions.resync import Resync
from aiorepl.transforms.patterns import Patterns, quote

RowKind = Literal["insert", "read", "update", "delete"]
"""The kinds of changes of one row; ``read`` is a row of a snapshot."""

M = TypeVar("M")
C = TypeVar("C", bound=Change)
_On = Callable[[Callable[[C], Awaitable[None]]], Callable[[C], Awaitable[None]]]
_OnModel = Callable[[Callable[[M, C], Awaitable[None]]], Callable[[M, C], Awaitable[None]]]
_ROW_KINDS: Final = get_args(RowKind)
_KINDS: Final = (*_ROW_KINDS, "truncate")
# A limit, because a stream may get new tables without end, such as a partition for each day.
_MOST_FOUND: Final = 1024


@dataclass(frozen=True, slots=True)
class _Handler:
    tables: Patterns
    kinds: tuple[str, ...]
    model: type | None
    function: Callable[..., Awaitable[None]]


class Router(Sink):
    """Handlers by table and kind. A change without a handler is ignored. Several handlers of a change are called in the order in
    which they were added, one after the other.

    An exception of a handler stops the router, or makes the transaction a dead letter, as with every sink. After
    ``TransientError`` the pipeline delivers the batch again, so a handler may see a change twice, also if a later handler failed.
    """

    def __init__(self) -> None:
        self._handlers: list[_Handler] = []
        # The handlers by kind and tables, because a stream has many changes of few tables.
        self._found: dict[tuple[str, tuple[Name, ...]], tuple[_Handler, ...]] = {}
        self._messages: dict[str, list[Callable[[Message], Awaitable[None]]]] = {}
        self._resyncs: list[Callable[[Resync], Awaitable[None]]] = []

    # mypy and pyright check a handler's parameters by the literal kind.
    @overload
    def on(self, tables: str, *, kind: Literal["insert"]) -> _On[Insert]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["read"]) -> _On[Read]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["update"]) -> _On[Update]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["delete"]) -> _On[Delete]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["truncate"]) -> _On[Truncate]: ...
    @overload
    def on(self, tables: str, *, kind: tuple[RowKind, ...] = ...) -> _On[RowChange]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["insert"], into: type[M]) -> _OnModel[M, Insert]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["read"], into: type[M]) -> _OnModel[M, Read]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["update"], into: type[M]) -> _OnModel[M, Update]: ...
    @overload
    def on(self, tables: str, *, kind: Literal["delete"], into: type[M]) -> _OnModel[M, Delete]: ...
    @overload
    def on(
        self, tables: str, *, kind: tuple[RowKind, ...] = ..., into: type[M]
    ) -> _OnModel[M, RowChange]: ...
    def on(
        self, tables: str, *, kind: str | tuple[str, ...] = _ROW_KINDS, into: type | None = None
    ) -> Callable[[Any], Any]:
        """Add the decorated coroutine function as a handler. It is called with the change; with ``into``, with an object and the change.

        :param tables: a name or pattern: ``public.orders``, ``public.*``; as in a selection.
        :param kind: a kind, or a tuple of kinds: ``insert``, ``read`` (rows of a snapshot), ``update``, ``delete``, ``truncate``. All but
            ``truncate`` by default.
        :param into: the class of the first argument: a dataclass, pydantic model or msgspec struct. The object has the values of
            the new row, or for a delete those of the deleted row (see ``RowChange.into``). A row that does not fit counts as an error of
            the handler.
        :raises ConfigurationError: the pattern, the kind or the class is invalid.
        """
        kinds = (kind,) if isinstance(kind, str) else kind
        if not isinstance(tables, str) or not isinstance(kinds, tuple) or not kinds:
            raise ConfigurationError("on takes the name of a table, and as kind a word or a tuple of words")
        for each in kinds:
            if each not in _KINDS:
                raise ConfigurationError(f"there is no kind {each!r}: {suggestion(str(each), _KINDS)}")
        if into is not None:
            model_of(into)
            if "truncate" in kinds:
                raise ConfigurationError("a truncate has no row: handle it without into")
        patterns = Patterns("tables", (tables,), 2)

        def add(function: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
            _require_coroutine_function(function)
            self._handlers.append(_Handler(patterns, kinds, into, function))
            self._found.clear()
            return function

        return add

    def on_message(
        self, prefix: str
    ) -> Callable[[Callable[[Message], Awaitable[None]]], Callable[[Message], Awaitable[None]]]:
        """Add the decorated coroutine function as a handler of logical decoding messages (``pg_logical_emit_message``).

        :param prefix: the exact prefix of the messages; patterns are not supported.
        """

        def add(function: Callable[[Message], Awaitable[None]]) -> Callable[[Message], Awaitable[None]]:
            _require_coroutine_function(function)
            self._messages.setdefault(prefix, []).append(function)
            return function

        return add

    def on_resync(self, function: Callable[[Resync], Awaitable[None]]) -> Callable[[Resync], Awaitable[None]]:
        """Add the decorated coroutine function as a handler of each ``Resync``. A router of a temporary slot needs a handler."""
        _require_coroutine_function(function)
        self._resyncs.append(function)
        self.takes_resync = True
        return function

    async def handle(self, change: Change) -> None:
        """Call the handlers of a change.

        :raises DataError: the row does not fit a handler's model; the text has no values.
        """
        if isinstance(change, Message):
            for on_message in self._messages.get(change.prefix, ()):
                await on_message(change)
            return
        if isinstance(change, Resync):
            for on_resync in self._resyncs:
                await on_resync(change)
            return
        tables: tuple[Name, ...] = ()
        if isinstance(change, RowChange):
            tables = ((change.schema, change.table),)
        elif isinstance(change, Truncate):
            tables = tuple([(each.schema, each.name) for each in change.relations])
        for handler in self._handlers_of(change.kind, tables):
            if handler.model is not None and isinstance(change, RowChange):
                await handler.function(change.into(handler.model), change)
            else:
                await handler.function(change)

    def _handlers_of(self, kind: str, tables: tuple[Name, ...]) -> tuple[_Handler, ...]:
        """Return the handlers of a kind of change to these tables, in the order in which they were added."""
        found = self._found.get((kind, tables))
        if found is None:
            found = tuple(
                [
                    each
                    for each in self._handlers
                    if kind in each.kinds and any(map(each.tables.match, tables))
                ]
            )
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            self._found[kind, tables] = found
        return found

    async def write(self, batch: Batch) -> None:
        """Call the handlers of all changes, one after the other."""
        for change in batch.changes:
            try:
                await self.handle(change)
            except DataError as error:
                raise PermanentError(str(error)) from error
            except PermanentError as error:
                if not error.rejected:
                    raise
                # A sink that names rejected changes has accepted all other changes. A router has not: no handler has seen the later changes.
                raise PermanentError(str(error), fatal=error.fatal) from error

    async def check(self, tables: Sequence[tuple[str, str]]) -> None:
        """Check that each handler's pattern matches a published table.

        :raises PermanentError: a handler's pattern matches no published table.
        """
        for handler in self._handlers:
            (pattern,) = handler.tables.all
            if not pattern.optional and not any(map(pattern.match, tables)):
                raise PermanentError(
                    f"router: {pattern.text} matches no published table: {suggestion(pattern.text, map(quote, tables))}"
                )

    def __repr__(self) -> str:
        return f"<Router of {len(self._handlers) + sum(map(len, self._messages.values()))} handlers>"


def _require_coroutine_function(function: object) -> None:
    """Check a handler.

    :raises ConfigurationError: it is no coroutine function.
    """
    if not iscoroutinefunction(function) and not iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise ConfigurationError("a handler is a coroutine function: write async def")
