"""A command whose package is missing names it and the way to get it."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from aiorepl.cli import main


def run(*arguments: str) -> int:
    """Run a command in this process, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def test_a_package_that_cannot_be_imported(monkeypatch, capsys):
    """The import's own text is shown, with the exit code of a wrong configuration."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert run("top", "--once", "http://127.0.0.1:9") == 2
    assert "rich.console" in capsys.readouterr().err


def test_compaction_without_pyarrow(monkeypatch, capsys, tmp_path):
    """``aiorepl journal compact`` names the extra."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    assert run("journal", "compact", str(tmp_path)) == 2
    assert "pip install 'aiorepl[parquet]'" in capsys.readouterr().err


def test_an_internal_error_says_where(monkeypatch, capsys, tmp_path):
    """The class, the file and the line of an unexpected error are shown; its text is not, because it may quote a row."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("4111-1111")

    monkeypatch.setattr("aiorepl.history.opening.open_compaction", broken)
    assert run("journal", "compact", str(tmp_path)) == 1
    told = capsys.readouterr().err
    assert "RuntimeError (test_missing_packages.py, line " in told
    assert "4111" not in told
