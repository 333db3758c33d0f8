"""Tables become arguments: substitution, conversion by type hints, and messages for mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pytest

from aiorepl import ConfigurationError
from aiorepl.cli.toml_tables import TableReader


@dataclass
class Limits:
    """A group of options."""

    rows: int = 10


class Made:
    """A class with options of every kind of hint."""

    def __init__(
        self,
        url: str,
        *,
        mode: Literal["append", "merge"] = "append",
        columns: Sequence[str] = (),
        headers: dict[str, str] | None = None,
        limits: Limits | None = None,
        cache_bytes: int = 0,
        timeout: float | None = None,
        folder: Path | None = None,
        names: str | tuple[str, ...] = (),
        deep: Any = None,
        file: BinaryIO | None = None,
        on_error: Callable[[], None] | None = None,
    ) -> None:
        self.given = locals()


# Neither streams nor callbacks: a file has nothing for them.
KNOWN = "cache_bytes, columns, deep, folder, headers, limits, mode, names, timeout, url"


class Untyped:
    """Hints that only a type reader could follow, and options without end."""

    def __init__(self, first: Unknown, **others: str) -> None:  # noqa: F821
        self.given = {"first": first} | others


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Some variables, and a secret file in the folder ``${FOLDER}``."""
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    for name, value in {"N": "30", "YES": "true", "EMPTY": "", "FOLDER": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NOPE", raising=False)


def made(table, maker=Made):
    """Return the arguments of a valid table."""
    reader = TableReader()
    result = reader.make("it", maker, table)
    assert [] == reader.errors
    return result.given


def mistakes(table, maker=Made):
    """Return the mistakes of a table, and check that nothing was made."""
    reader = TableReader()
    assert reader.make("it", maker, {"url": "x"} | table) is None
    return reader.errors


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("plain $ text", "plain $ text"),
        ("${N}", "30"),
        ("a${N}b${N}", "a30b30"),
        ("${EMPTY}", ""),
        ("${NOPE:-there}", "there"),
        ("${EMPTY:-there}", "there"),
        ("${N:-there}", "30"),
        ("${NOPE:-}", ""),
        ("$${N}", "${N}"),
        ("file:${FOLDER}/token", "s3cret"),
        ("file:///not/read", "file:///not/read"),
    ],
)
def test_strings(written, expected):
    """Variables, with defaults as a shell's for what is unset or empty; and the text of secret files."""
    assert expected == made({"url": written})["url"]


def test_what_a_variable_holds_stays_as_it_is(monkeypatch):
    """No variable or file is looked for in what the environment says."""
    monkeypatch.setenv("A", "${N}")
    monkeypatch.setenv("B", "file:/etc/hostname")

    assert ["${N}", "file:/etc/hostname"] == made({"url": "x", "columns": ["${A}", "${B}"]})["columns"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("mode", "merge", "merge"),
        ("columns", ["a", "${N}"], ["a", "30"]),
        ("headers", {"Authorization": "Bearer ${N}"}, {"Authorization": "Bearer 30"}),
        ("limits", {"rows": 3}, Limits(3)),
        ("limits", {"rows": "${N}"}, Limits(30)),
        ("cache_bytes", 5, 5),
        ("cache_bytes", "2KiB", 2048),
        ("cache_bytes", "1 MB", 10**6),
        ("cache_bytes", "64MiB", 64 * 1024**2),
        ("cache_bytes", "${NOPE:-1GiB}", 1024**3),
        ("timeout", 3, 3),
        ("timeout", 0.5, 0.5),
        ("timeout", "${N}", 30),
        ("folder", "${N}", Path("30")),
        ("names", "a", "a"),
        ("names", ["a"], ("a",)),
        ("deep", [1, {"x": ["${YES}"]}], [1, {"x": ["true"]}]),
    ],
)
def test_values(name, value, expected):
    """Options arrive as their hints have them; text from the environment is a number where a number is wanted."""
    assert expected == made({"url": "x"} | {name: value})[name]


def test_without_hints():
    """Options without hints, and those that no signature lists, accept anything."""
    assert {"first": 1, "other": ["30"]} == made({"first": 1, "other": ["${N}"]}, Untyped)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"mode": "x"}, ["it.mode: must be append or merge"]),
        ({"mode": 1}, ["it.mode: must be append or merge"]),
        ({"columns": "a"}, ["it.columns: must be an array"]),
        ({"columns": ["a", 1, True]}, ["it.columns[2]: must be a string", "it.columns[3]: must be a string"]),
        ({"headers": ["a"]}, ["it.headers: must be a table"]),
        ({"headers": {"a b": 1}}, ['it.headers."a b": must be a string']),
        ({"limits": 1}, ["it.limits: must be a table"]),
        (
            {"limits": {"rows": "x", "row": 1}},
            ["it.limits.rows: must be an integer", "it.limits.row: unknown; did you mean rows?"],
        ),
        ({"cache_bytes": "2q"}, ['it.cache_bytes: must be a size such as 1048576 or "16MiB"']),
        ({"cache_bytes": True}, ['it.cache_bytes: must be a size such as 1048576 or "16MiB"']),
        ({"cache_bytes": -1}, ["it.cache_bytes: must be at least 0"]),
        ({"timeout": "3"}, ["it.timeout: must be a number"]),
        ({"timeout": float("nan")}, ["it.timeout: must be a number"]),
        ({"timeout": "${YES}"}, ["it.timeout: must be a number"]),
        ({"folder": 1}, ["it.folder: must be a path"]),
        ({"names": 1}, ["it.names: must be a string or an array"]),
        ({"url": 1}, ["it.url: must be a string"]),
        (
            {"columsn": 1, "moed": 1},
            ["it.columsn: unknown; did you mean columns?", "it.moed: unknown; did you mean mode?"],
        ),
        ({"on_error": "x"}, [f"it.on_error: unknown; use one of {KNOWN}"]),
        ({"file": "x"}, ["it.file: unknown; did you mean folder?"]),
        (
            {"url": "${NOPE}, ${NOPE_2}"},
            [
                "it.url: environment variable NOPE is not set",
                "it.url: environment variable NOPE_2 is not set",
            ],
        ),
        ({"url": "${1}"}, ["it.url: write ${NAME} or ${NAME:-default}, or $${ for a literal ${"]),
        ({"url": "file:/no/${N}"}, ["it.url: /no/${N} cannot be read: No such file or directory"]),
        ({"url": "file:${FOLDER}"}, ["it.url: ${FOLDER} cannot be read: Is a directory"]),
        (
            {"url": "file:${FOLDER}/bytes"},
            ["it.url: ${FOLDER}/bytes cannot be read: it is not text in UTF-8"],
        ),
    ],
)
def test_mistakes(table, expected):
    """All mistakes of a table are reported at once, each with its key, and none with a value."""
    assert expected == mistakes(table)


def test_missing():
    """An option without a default has to be there."""
    reader = TableReader()

    assert reader.make("it", Made, {}) is None
    assert ["it.url: missing"] == reader.errors


URL = "postgresql://user:hunter2/x@host/database"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigurationError(f"{URL} isn't a URL"), "… isn't a URL"),
        (ConfigurationError(f"{URL!r} doesn't fit 'append'"), "'…' doesn't fit 'append'"),
        (ValueError("port 'hunter2' is no number;\n it's text"), "port '…' is no number; it's text"),
        (TypeError("wants 2 arguments"), "wants 2 arguments"),
        (ValueError(), "raised ValueError"),
        (KeyError("hunter2"), "raised KeyError"),
        (ImportError("no", name="driver"), "needs driver, which is not installed"),
    ],
)
def test_what_a_constructor_raises(error, expected):
    """A constructor's error is reported with the table's key, on one line, without the values that it quotes."""

    def maker(url: str) -> None:
        raise error

    assert [f"it: {expected}"] == mistakes({"url": URL}, maker)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConfigurationError("token s3cret is wrong, 's3cret' too"), "token … is wrong, '…' too"),
        (ValueError("cannot read 3cr, which is part of it"), "raised ValueError"),
    ],
)
def test_secrets_in_what_a_constructor_raises(error, expected):
    """If options come from the environment, only the type of another class's error is shown."""

    def maker(url: str) -> None:
        raise error

    assert [f"it: {expected}"] == mistakes({"url": "file:${FOLDER}/token"}, maker)
