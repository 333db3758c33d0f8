"""Errors and notices: one printable line each, whatever a server has put in names and messages."""

from __future__ import annotations

import pickle

import pytest

from aiorepl import errors
from aiorepl.cli.toml_tables import InvalidFile
from aiorepl.errors import AioreplError, ServerError
from aiorepl.spark.mirroring.applying import error_text
from aiorepl.wire.server_errors import slot_problem

# A line of its own for the log, a command for the terminal, a line break of Unicode's, text that runs backwards.
NASTY = "harmless\nERROR: forged\r\x1b[2J\x9b2J\u2028\u202eback"
ESCAPED = r"harmless\nERROR: forged\r\x1b[2J\x9b2J\u2028\u202eback"


def kinds() -> list[type[AioreplError]]:
    """All error classes."""
    found, left = [], [AioreplError]
    while left:
        kind = left.pop()
        found.append(kind)
        left += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("aiorepl.errors")]


@pytest.mark.parametrize("kind", kinds())
def test_one_printable_line(kind):
    """An error's text is one line without control characters, and so is its repr."""
    arguments = {ServerError: ({"M": NASTY, "H": NASTY},), errors.DamagedJournal: (NASTY, NASTY)}
    error = kind(*arguments.get(kind, (NASTY,)))
    assert ESCAPED in str(error)
    assert (True, True) == (str(error).isprintable(), repr(error).isprintable())


@pytest.mark.parametrize("kind", kinds())
def test_pickled(kind):
    """An error that a Spark executor or another process sends has the same text."""
    arguments = {ServerError: ({"M": "a", "H": "b"},), errors.DamagedJournal: ("a", "b")}
    error = kind(*arguments.get(kind, ("a",)))
    assert str(error) == str(pickle.loads(pickle.dumps(error)))


def test_plain_text_stays_as_it_is():
    """Letters of any script, and backslashes, are not escaped."""
    text = "Größe, テーブル, C:\\temp: write postgresql://user@host/database"
    assert text == str(AioreplError(text))


def test_mistakes_are_a_line_each():
    """The mistakes in a file keep their lines, and each is printable."""
    assert f"a\n{ESCAPED}" == str(InvalidFile(["a", NASTY]))


def test_the_fields_are_as_they_were_sent():
    """Code that wants the server's own text finds it in the attributes, also after pickling."""
    error = pickle.loads(pickle.dumps(ServerError({"C": "42501", "M": NASTY})))
    assert NASTY == error.message
    assert f"{ESCAPED} (SQLSTATE 42501)" == str(error)
    assert ESCAPED in str(slot_problem(error, "s"))


class _NotInstalled(Exception):
    pass


_NotInstalled.__name__, _NotInstalled.__module__ = "NotInstalledError", "pyiceberg.exceptions"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            ModuleNotFoundError("No module named 'pandas'"), "No module named 'pandas'", id="import"
        ),
        pytest.param(PermissionError(13, "Permission denied", "/lake"), "/lake", id="permission"),
        pytest.param(ConnectionRefusedError(111, "Connection refused"), "refused", id="connection"),
        pytest.param(_NotInstalled("pip install 'pyiceberg[glue]'"), "pyiceberg[glue]", id="pyiceberg"),
    ],
)
def test_errors_that_quote_no_row_show_their_text(error, text):
    """The class and the text of such an error are in logs."""
    assert errors.loggable(error).startswith(type(error).__name__)
    assert text in errors.loggable(error)
    assert text in error_text(error)


@pytest.mark.parametrize(
    "kind", [ValueError, KeyError, RuntimeError, OverflowError, ConnectionError, PermissionError]
)
def test_other_errors_hide_their_text(kind):
    """The text of any other error may be a row's value."""
    assert errors.loggable(kind("4111-1111")) == kind.__name__
    assert "4111" not in error_text(kind("4111-1111"))
