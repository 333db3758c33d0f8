"""``aiorepl decrypt``: the values that the masking method encrypt has written."""

from __future__ import annotations

import io
import sys

import pytest

from aiorepl.cli import main
from aiorepl.transforms.encryption import encryptor

FORMER, PRESENT = 16 * "former", 16 * "present"


@pytest.fixture
def keys(tmp_path):
    """The options with the files of two keys; one file ends with a line break, as an editor leaves it."""
    (tmp_path / "former").write_text(FORMER)
    (tmp_path / "present").write_text(f"{PRESENT}\n")
    return ["--key", str(tmp_path / "present"), "--key", str(tmp_path / "former")]


def encrypted(key: str, text: str) -> str:
    """The mask of a value."""
    return encryptor(key)(text.encode()).decode()


def run(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(["decrypt", *arguments])
    return ended.value.code


def test_values(keys, capsys):
    """Values of the present key and of a former one are decrypted, in the order of the command line."""
    assert 0 == run(*keys, encrypted(PRESENT, "Grüße"), encrypted(FORMER, ""))
    assert ("Grüße\n\n", "") == capsys.readouterr()


def test_standard_input(keys, capsys, monkeypatch):
    """Without values on the command line, each line of standard input is one."""
    lines = f"{encrypted(PRESENT, '1')}\n{encrypted(FORMER, '2')}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))

    assert 0 == run(*keys)
    assert ("1\n2\n", "") == capsys.readouterr()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("DE89", "the text is no encrypted value"),
        (encrypted(32 * "x", "1"), "is not among the keys"),
        (encrypted(PRESENT, "1")[:-1] + "?", "damaged, or was altered"),
    ],
)
def test_no_value(keys, capsys, value, problem):
    """A text that no key has encrypted, or that was altered, is an error that does not contain the keys."""
    assert 0 != run(*keys, value)
    printed = capsys.readouterr()
    assert "" == printed.out
    assert problem in printed.err
    assert FORMER not in printed.err
    assert PRESENT not in printed.err
