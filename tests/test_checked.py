"""Every option of every public constructor refuses values that it cannot have, and says which option it is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aiorepl
from aiorepl import ConfigurationError
from aiorepl.checked import checked
from aiorepl.formats import named
from aiorepl.journal import Retention
from aiorepl.monitoring import Watch
from aiorepl.pipeline.registry import load, sinks
from aiorepl.testing import MemorySink, MemorySource

SECRET = "s3cret-words"
SOURCE = MemorySource()
PIPELINE = aiorepl.Pipeline(SOURCE, [MemorySink()])

# For each constructor, arguments that are valid.
FACTORIES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Source": (aiorepl.Source, {"dsn": "postgresql://", "slot": "s", "publication": "p"}),
    "connect": (aiorepl.connect, {"dsn": "postgresql://", "slot": "s", "publication": "p"}),
    "Pipeline": (aiorepl.Pipeline, {"source": SOURCE, "sinks": {"s": MemorySink()}}),
    "Delivery": (aiorepl.Delivery, {"sink": MemorySink()}),
    "BatchPolicy": (aiorepl.BatchPolicy, {}),
    "RetryPolicy": (aiorepl.RetryPolicy, {}),
    "SnapshotOptions": (aiorepl.SnapshotOptions, {}),
    "Selection": (aiorepl.Selection, {}),
    "DeadLetters": (aiorepl.DeadLetters, {"path": "letters"}),
    "ObjectStore": (aiorepl.ObjectStore, {"url": "s3://bucket"}),
    "Routing": (aiorepl.Routing, {"template": "t"}),
    "Retention": (Retention, {"max_bytes": 1}),
    "Watch": (Watch, {"pipeline": PIPELINE}),
    "formats.named": (named, {}),
}
REQUIRED = {
    "webhook": {"url": "https://example.com"},
    "nats": {"stream": "s"},
    "postgres": {"dsn": "postgresql://"},
    "jsonl": {"path": "events"},
    "parquet": {"path": "events"},
    "s3": {"url": "s3://bucket"},
}
FACTORIES |= {
    name: (load(name), REQUIRED.get(name, {}))
    for name in sinks()
    if load(name).__module__.startswith("aiorepl")
}
ZERO = {
    *("connect.until", "Pipeline.until"),
    *(
        "Source.receive_timeout",
        "connect.receive_timeout",
        "Pipeline.shutdown_timeout",
        "RetryPolicy.timeout",
    ),
    *("RetryPolicy.wait_initial", "RetryPolicy.wait_max", "BatchPolicy.linger", "BatchPolicy.flush_seconds"),
    *(
        "Retention.max_age_seconds",
        "Retention.max_bytes",
        "redis.replicas",
        "parquet.memory_bytes",
        "s3.memory_bytes",
    ),
}
EMPTY = {"Source.dsn", "connect.dsn"}
# Aliases of a few words; an error may show another word.
WORDS = {
    "Origin",
    "Interface",
    "StreamingMode",
    "OnNewTable",
    "OnPartitionChange",
    "OnError",
    "Compression",
    "Body",
}
# The values of these come from the program itself, and their types are checked by type checkers.
INTERNAL = {"Watch.pipeline", "formats.named.position"}


class Wrong:
    """No option has this type."""

    def __repr__(self) -> str:
        return SECRET


def parameters() -> Iterator[tuple[str, str, str]]:
    """Yield the constructor, the name and the annotation of each option."""
    for owner, (factory, _) in FACTORIES.items():
        called = (factory, aiorepl.Source) if factory is aiorepl.connect else (factory,)
        for each in called:
            for name, parameter in inspect.signature(each).parameters.items():
                if parameter.kind is not parameter.VAR_KEYWORD and f"{owner}.{name}" not in INTERNAL:
                    yield owner, name, str(parameter.annotation)


def wrong_values(option: str, annotation: str) -> Iterator[Any]:
    """Yield values that an option with this annotation cannot have."""
    yield from (Wrong(), -1, math.nan, math.inf, -math.inf, b"x", [Wrong()], {1: Wrong()})
    if "None" not in annotation:
        yield None
    if "bool" not in annotation:
        yield True
    if "str" not in annotation and "Location" not in annotation:
        yield SECRET
    if option not in ZERO:
        yield 0
    if option not in EMPTY:
        yield ""


@pytest.mark.parametrize(("owner", "name", "annotation"), list(parameters()))
def test_wrong_values(owner: str, name: str, annotation: str):
    """The error names the option, and never the value, which may be a password."""
    factory, valid = FACTORIES[owner]
    told = []
    for value in wrong_values(f"{owner}.{name}", annotation):
        try:
            factory(**valid | {name: value})
        except ConfigurationError as error:
            shown = SECRET in str(error) and not annotation.startswith(("Literal", "LSN | Literal", *WORDS))
            if name.removesuffix("s") not in str(error) or shown:
                told.append(f"{value!r}: says {error}")
        except Exception as error:  # noqa: BLE001 - which one is the point
            told.append(f"{value!r}: raised {type(error).__name__}: {error}")
        else:
            told.append(f"{value!r}: accepted")
    assert [] == told, annotation


@pytest.mark.parametrize("owner", FACTORIES)
def test_right_values(owner: str):
    """The table's arguments are valid, so that every refusal above is that of the wrong value."""
    factory, valid = FACTORIES[owner]
    factory(**valid)


def test_a_function():
    """A function is checked like a class; a call that lacks an argument gets Python's own error."""

    @checked("f", own=("c",))
    def f(a: int, b: list[str] | None = None, c: int = 1) -> tuple[Any, ...]:
        return a, b, c

    assert (1, ["x"], "own") == f(1, b=["x"], c="own")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"^f: b is of type str, but must be a list of text or None$"
    ):
        f(1, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        f()  # type: ignore[call-arg]
