"""Every option of every public constructor refuses values that it cannot have, and says which option it is."""

from __future__ import annotations

import inspect
import numbers
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import aiorepl
from aiorepl import ConfigurationError
from aiorepl.checked import checked
from aiorepl.durations import Duration
from aiorepl.fitting import MISFIT, fitted
from aiorepl.formats import named
from aiorepl.formats.cloudevents import CloudEventsFormat
from aiorepl.formats.native import NativeFormat
from aiorepl.formats.pretty import PrettyFormat
from aiorepl.journal import Retention
from aiorepl.monitoring import Watch
from aiorepl.pipeline.registry import load, sinks
from aiorepl.sizes import Size
from aiorepl.storage.local import LocalStore
from aiorepl.storage.store import Store
from aiorepl.testing import MemorySink, MemorySource
from aiorepl_sinks.formats.debezium import DebeziumFormat
from aiorepl_sinks.formats.wal2json import Wal2JsonFormat
from tests.wrong_options import problems

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
    "NativeFormat": (NativeFormat, {}),
    "DebeziumFormat": (DebeziumFormat, {}),
    "CloudEventsFormat": (CloudEventsFormat, {}),
    "Wal2JsonFormat": (Wal2JsonFormat, {}),
    "PrettyFormat": (PrettyFormat, {}),
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
ZERO |= {"PrettyFormat.width"}
EMPTY = {"Source.dsn", "connect.dsn", "DebeziumFormat.name", "DebeziumFormat.database"}
# The values of these come from the program itself, and their types are checked by type checkers.
INTERNAL = {"Watch.pipeline", "formats.named.position"}


def parameters() -> Iterator[tuple[str, str, str]]:
    """Yield the constructor, the name and the annotation of each option."""
    for owner, (factory, _) in FACTORIES.items():
        called = (factory, aiorepl.Source) if factory is aiorepl.connect else (factory,)
        for each in called:
            for name, parameter in inspect.signature(each).parameters.items():
                if parameter.kind is not parameter.VAR_KEYWORD and f"{owner}.{name}" not in INTERNAL:
                    yield owner, name, str(parameter.annotation)


@pytest.mark.parametrize(("owner", "name", "annotation"), list(parameters()))
def test_wrong_values(owner: str, name: str, annotation: str):
    """The error names the option, and never the value, which may be a password."""
    factory, valid = FACTORIES[owner]
    option = f"{owner}.{name}"
    told = problems(factory, valid, name, annotation, zero=option in ZERO, empty=option in EMPTY)
    assert [] == told, annotation


@pytest.mark.parametrize("owner", FACTORIES)
def test_right_values(owner: str):
    """The table's arguments are valid, so that every refusal above is that of the wrong value."""
    factory, valid = FACTORIES[owner]
    factory(**valid)


class Index:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    __int__ = __index__


numbers.Integral.register(Index)


@checked("o")
def options(
    number: int = 1,
    seconds: Duration = 1,
    size: Size = 1,
    rate: float = 1.0,
    names: tuple[str, ...] = (),
    listed: list[str] | tuple[str, ...] = (),
    pair: tuple[str, int] = ("a", 1),
    many: Iterable[str] = (),
    unique: frozenset[str] = frozenset(),
    each: Mapping[str, int] = MappingProxyType({}),
    path: str | os.PathLike[str] = ".",
    folder: Path | None = None,
) -> dict[str, Any]:
    return dict(locals())


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("number", np.int64(3), 3),
        ("number", Index(3), 3),
        ("seconds", np.int32(3), 3),
        ("seconds", np.float32(0.5), 0.5),
        ("size", np.uint8(3), 3),
        ("rate", np.float32(0.5), 0.5),
        ("rate", 3, 3),
        ("names", ["a", "b"], ("a", "b")),
        ("names", deque(["a"]), ("a",)),
        ("listed", ("a",), ("a",)),
        ("pair", ["a", np.int64(2)], ("a", 2)),
        ("many", iter(["a", "b"]), ["a", "b"]),
        ("many", {"a": 1}.keys(), {"a": 1}.keys()),
        ("unique", ["a", "a"], frozenset("a")),
        ("each", {"a": np.int64(2)}, {"a": 2}),
        ("path", Path("a"), Path("a")),
        ("folder", "a", Path("a")),
    ],
)
def test_values_without_loss(name: str, given: Any, expected: Any):
    """A value of another class that loses nothing is converted; a value that already fits stays the same object."""
    found = options(**{name: given})[name]
    assert expected == found
    assert type(expected) is type(found)
    assert found is given or repr(expected) != repr(given)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("number", np.float64(3), "of type float64, but must be an integer"),
        ("number", Fraction(3), "of type Fraction, but must be an integer"),
        ("number", np.bool_(True), "of type bool, but must be an integer"),
        ("number", np.int64(-3), "-3, but must be an integer, at least 1"),
        ("number", np.timedelta64(3, "s"), "of type timedelta64, but must be an integer"),
        ("seconds", np.float64(-1), "more than 0"),
        ("seconds", np.timedelta64(3, "s"), "of type timedelta64, but must be a number of seconds"),
        pytest.param("seconds", 10**400, "seconds is too large: it must be a number of seconds", id="huge"),
        pytest.param("rate", -(10**400), "rate is too large: it must be a number", id="huge rate"),
        ("names", "ab", "of type str, but must be a list of text"),
        ("names", {"a": 1}, "of type dict, but must be a list of text"),
        ("names", {"b", "a"}, "of type set, but must be a list of text"),
        ("names", ["a", 1], "but must be a list of text"),
        ("pair", ("a",), "but must be a tuple of text, an integer"),
        ("pair", ("a", "b"), "but must be a tuple of text, an integer"),
        ("pair", "ab", "but must be a tuple of text, an integer"),
        ("many", ["a", 1], "but must be a list of text"),
        ("many", iter([1]), "but must be a list of text"),
        ("many", "ab", "of type str, but must be a list of text"),
        ("many", np.array("a"), "of type ndarray, but must be a list of text"),
        ("each", {"a": "b"}, "but must be a mapping"),
        ("path", 1, "of type int, but must be text or a PathLike"),
    ],
)
def test_values_with_loss(name: str, given: Any, words: str):
    """A value that cannot become one of its annotation without loss, or contains such a value, is refused."""
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        options(**{name: given})


def test_a_function():
    """A function is checked like a class; a call that lacks an argument gets Python's own error."""

    @checked("f", own=("c",))
    def f(a: int, b: list[str] | None = None, c: int = 1) -> tuple[Any, ...]:
        return a, b, c

    assert (1, ["x"], "own") == f(1, b=["x"], c="own")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError,
        match=r"^f: b is of type str, but must be a list of text or None: write \[\"…\"\]$",
    ):
        f(1, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        f()  # type: ignore[call-arg]


class _PassesOn:
    """An object that has another object's attributes, such as a stand-in for a store."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_object_with_the_attributes_of_a_protocol(tmp_path):
    """An object of its own class is a store if it has a store's methods, also through ``__getattr__``."""
    store = _PassesOn(LocalStore(tmp_path))
    assert store is fitted([Store], store)
    assert fitted([Store], _PassesOn(object())) is MISFIT
    assert fitted([Store], LocalStore) is MISFIT
    assert fitted([Store], 5) is MISFIT
