"""Unsent values are found by following the changes in order."""

from __future__ import annotations

from aiorepl.spark.mirroring.unchanged import Kept, Step, resolve

A, B, C = (1,), (2,), (3,)


def steps(*given: tuple) -> list[Step]:
    return [Step(op, (lsn, ordinal), key, values) for op, lsn, ordinal, key, values in given]


def test_kept_and_sent() -> None:
    """A column keeps the mirror's value until one is sent."""
    rows = resolve(
        steps(
            ("update", 1, 0, A, {"x": "new"}), ("update", 1, 1, A, {}), ("update", 1, 0, B, {}),
        ),
        ["x", "y"],
        truncated=False,
    )  # fmt: skip
    assert rows == {A: {"x": "new", "y": Kept(A)}, B: {"x": Kept(B), "y": Kept(B)}}


def test_moves() -> None:
    """A key change takes the values along, over several changes and in swaps."""
    rows = resolve(
        steps(
            ("delete", 1, 0, A, {}), ("insert", 1, 0, C, {}),
            ("delete", 1, 1, B, {}), ("insert", 1, 1, A, {}),
            ("delete", 2, 0, C, {}), ("insert", 2, 0, B, {"y": "sent"}),
        ),
        ["x", "y"],
        truncated=False,
    )  # fmt: skip
    assert rows == {B: {"x": Kept(A), "y": "sent"}, A: {"x": Kept(B), "y": Kept(B)}}


def test_deleted_and_born_again() -> None:
    """A new row with the key of a deleted one has none of its values."""
    rows = resolve(
        steps(("delete", 1, 0, A, {}), ("insert", 1, 1, A, {"x": "born"}), ("update", 1, 2, A, {})),
        ["x"],
        truncated=False,
    )
    assert rows == {A: {"x": "born"}}


def test_truncated() -> None:
    """After a truncate the mirror's values are not used."""
    assert resolve(steps(("update", 1, 0, A, {})), ["x"], truncated=True) == {A: {"x": None}}
    assert resolve(steps(("insert", 1, 0, A, {})), ["x"], truncated=False) == {A: {"x": None}}
