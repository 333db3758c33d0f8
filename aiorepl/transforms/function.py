"""The user's transform function, called for each selected change before the sink gets it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from importlib import import_module

from aiorepl.cancellation import detect_unexpected_cancellation
from aiorepl.errors import ConfigurationError, DataError, SinkError, TransientError, raised
from aiorepl.retry import RetryPolicy
from aiorepl.sink import Batch
from aiorepl.transactions.changes import Change
from aiorepl.transactions.resync import Resync
from aiorepl.transactions.slices import Slice

Transform = Callable[[Change], Awaitable[Change | None] | Change | None]


def load(named: str) -> Transform:
    """Import the function ``package.module:function``.

    :raises ConfigurationError: the module cannot be imported, or has no such function.
    """
    module, colon, name = named.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"transform {named!r} does not have the form package.module:function")
    try:
        found = import_module(module)
    except ImportError as error:
        raise ConfigurationError(f"transform {named!r}: no module {error.name or module}") from error
    function = getattr(found, name, None)
    if not callable(function):
        raise ConfigurationError(f"transform {named!r}: {module} has no function {name}")
    return function  # type: ignore[no-any-return]


class TransformFailed(Exception):
    """The transform failed for some changes of a batch.

    :ivar batch: the transformed changes of the batch.
    :ivar rejected: the changes for which the transform failed, untransformed.
    :ivar error: the error of the first rejected change.
    """

    def __init__(self, batch: Batch, rejected: list[Change], error: SinkError) -> None:
        self.batch = batch
        self.rejected = rejected
        self.error = error


class Transformer:
    """Calls the function for every change of a batch, in order, with retries after ``TransientError``."""

    def __init__(self, sink: str, transform: Transform, retry: RetryPolicy) -> None:
        self._sink = sink
        self._transform = transform
        self._policy = retry

    async def batch(self, batch: Batch) -> Batch:
        """Return the batch with every change transformed.

        :raises TransformFailed: the function failed permanently for some changes.
        """
        rejected: list[Change] = []
        errors: list[SinkError] = []
        parts: list[Slice] = []
        for part in batch.slices:
            kept: list[Change] = []
            for change in part.changes:
                if isinstance(change, Resync):
                    kept.append(change)
                    continue
                try:
                    result = await self._retry(change)
                except SinkError as error:
                    errors.append(error)
                    rejected.append(change)
                else:
                    if result is not None:
                        kept.append(result)
            parts.append(replace(part, changes=kept))
        transformed = Batch(tuple(parts))
        if errors:
            raise TransformFailed(transformed, rejected, errors[0])
        return transformed

    async def _retry(self, change: Change) -> Change | None:
        try:
            return await self._call(change)
        except TransientError:
            pass
        async for attempt in self._policy.sink(f"sink {self._sink}: its transform"):
            with attempt:
                return await self._call(change)
        raise AssertionError("the retries end by returning or raising")

    async def _call(self, change: Change) -> Change | None:
        try:
            result = self._transform(change)
            if inspect.isawaitable(result):
                result = await detect_unexpected_cancellation(result)
        except SinkError:
            raise
        except DataError as error:
            raise SinkError(
                f"sink {self._sink}: its transform read a value that cannot be decoded: {error}"
            ) from error
        except Exception as error:
            # The exception's own text may quote the row.
            raise SinkError(f"sink {self._sink}: its transform {raised(error)}") from error
        if result is None:
            return None
        if (
            not isinstance(result, Change)
            or result.transaction is not change.transaction
            or result.ordinal != change.ordinal
        ):
            raise SinkError(
                f"sink {self._sink}: its transform returned a {type(result).__name__}; it must return the change, the "
                "result of its with_columns, or None"
            )
        return result
