"""Every option of every public constructor and function of ``aiorepl.spark`` refuses values that it cannot have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyspark.sql import DataFrame

import aiorepl.spark
from aiorepl import ConfigurationError
from tests.wrong_options import problems

CATALOG = InMemoryCatalog("c")
FRAME = cast("DataFrame", object.__new__(DataFrame))
PLACES = {"journal": "/journal", "target": "/lake"}
TABLES = {"tables": ["public.*"]}
SLOT = {"dsn": "postgresql://", "slot": "s", "publication": "p"}

# For each constructor and function, arguments that are valid. None is not a session: a valid call ends at its first use.
FACTORIES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "DeltaLake": (aiorepl.spark.DeltaLake, {"root": "/lake"}),
    "DeltaTarget": (aiorepl.spark.DeltaTarget, {"target": "/lake/t"}),
    "IcebergLake": (aiorepl.spark.IcebergLake, {"catalog": CATALOG}),
    "IcebergTarget": (
        aiorepl.spark.IcebergTarget,
        {"catalog": CATALOG, "identifier": ("a", "b")},
    ),
    "Layout": (aiorepl.spark.Layout, {}),
    "Upkeep": (aiorepl.spark.Upkeep, {}),
    "Mirror": (aiorepl.spark.Mirror, PLACES | TABLES),
    "mirror": (aiorepl.spark.mirror, {"spark": None} | PLACES | TABLES),
    "MirroredTables": (aiorepl.spark.MirroredTables, {"target": "/lake"}),
    "apply_changes": (aiorepl.spark.apply_changes, {"df": FRAME, "target": "/lake", "keys": ["id"]}),
    "changes": (aiorepl.spark.changes, {"spark": None, "journal": "/journal", "table": "public.t"}),
    "local_session": (aiorepl.spark.local_session, {}),
    "Snapshot": (aiorepl.spark.Snapshot, {"spark": None} | SLOT),
    "Snapshot.mirror": (
        lambda **options: aiorepl.spark.Snapshot(None, **SLOT).mirror(**options),
        {"targets": {"public.t": "/lake/t"}},
    ),
    "verify": (aiorepl.spark.verify, SLOT | PLACES),
}
SIGNATURES = {"Snapshot.mirror": aiorepl.spark.Snapshot.mirror}
ZERO = {"Upkeep.optimize_every", "Upkeep.vacuum_every", "Upkeep.retain", "verify.timeout"}
EMPTY = {"IcebergLake.prefix", "Snapshot.dsn", "verify.dsn", "Mirror.consumer"}
# A session of Spark Connect has another class than a classic one, and there may be a third.
NOT_CHECKED = {"spark", "self"}
# They have no options.
WITHOUT_OPTIONS = {"QueryListener", "register"}


def test_all_are_here():
    """A new constructor or function of the package needs an entry."""
    public = {name for name in aiorepl.spark.__all__ if name not in WITHOUT_OPTIONS}
    assert public == {name for name in FACTORIES if "." not in name}


def parameters() -> Iterator[tuple[str, str, str]]:
    """Yield the constructor, the name and the annotation of each option."""
    for owner, (factory, _) in FACTORIES.items():
        for name, parameter in inspect.signature(SIGNATURES.get(owner, factory)).parameters.items():
            if parameter.kind is not parameter.VAR_KEYWORD and name not in NOT_CHECKED:
                yield owner, name, str(parameter.annotation)


@pytest.mark.parametrize(("owner", "name", "annotation"), list(parameters()))
def test_wrong_values(owner: str, name: str, annotation: str):
    """The error names the option, and never the value."""
    factory, valid = FACTORIES[owner]
    option = f"{owner}.{name}"
    assert [] == problems(factory, valid, name, annotation, zero=option in ZERO, empty=option in EMPTY), (
        annotation
    )


def test_right_values(tmp_path: Path):
    """Lists are tuples, paths are texts, and an LSN is a position."""
    assert ("a",) == aiorepl.spark.Layout(partition_by=["a"]).partition_by  # type: ignore[arg-type]
    assert str(tmp_path) == aiorepl.spark.DeltaTarget(tmp_path).target
    found = aiorepl.spark.Mirror(tmp_path, ("public.*",), tmp_path, starting_position=aiorepl.LSN(255))
    assert "0/FF" == str(found._options.start)
    for owner in ("DeltaLake", "IcebergLake", "IcebergTarget", "Upkeep", "Mirror", "Snapshot"):
        factory, valid = FACTORIES[owner]
        factory(**valid)


def test_options_of_mirror():
    """``mirror`` refuses wrong options before it uses the session."""
    with pytest.raises(
        ConfigurationError, match=r"^mirror: max_bytes is 0, but must be a number of bytes, at least 1$"
    ):
        aiorepl.spark.mirror(None, **PLACES, **TABLES, max_bytes=0)  # type: ignore[arg-type]
    by_pattern = "mode is of type dict, but must be .* or a mapping from text to current, history, soft_delete or changelog"
    with pytest.raises(ConfigurationError, match=by_pattern):
        aiorepl.spark.mirror(None, **PLACES, **TABLES, mode={"*.*": "currnt"})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="mirror: mode is 'currnt', but must be current, history"):
        aiorepl.spark.mirror(None, **PLACES, **TABLES, mode="currnt")  # type: ignore[arg-type]
