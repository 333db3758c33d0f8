"""The file of ``aiorepl run``: what each of its tables becomes. Nothing connects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aiorepl import BatchPolicy, RetryPolicy, Selection, SnapshotOptions
from aiorepl.cli import main
from aiorepl.cli.example_file import EXAMPLE
from aiorepl.cli.pipeline_file import load
from aiorepl.journal import Retention
from aiorepl.pipeline.pipeline import FOR_EVER
from aiorepl.secret import Secret

SOURCE = "[source]\nslot = 'orders'\npublication = 'shop'\n"
ARCHIVE = "\n[[sinks]]\ntype = 'jsonl'\npath = 'events'\n"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    """An empty folder, and none of our variables."""
    monkeypatch.delenv("AIOREPL_DSN", raising=False)
    monkeypatch.chdir(tmp_path)


def written(text):
    """The file, in the current folder and under its usual name."""
    path = Path("aiorepl.toml")
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def made(monkeypatch):
    """``made(text)``: the arguments that the file's pipeline is made with."""

    def arguments(text):
        given = {}
        monkeypatch.setattr("aiorepl.pipeline.pipeline.Pipeline", lambda **options: given.update(options))
        load(written(text))
        return given

    return arguments


def command(capsys, *arguments):
    """Exit code, output and errors of ``aiorepl run``."""
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_the_smallest(made):
    """A source and a sink are enough; all else is as in Python."""
    given = made(SOURCE + ARCHIVE)

    assert {"source", "sinks", "reconnect", "resnapshot", "accept_gap"} == given.keys()
    assert ("orders", "shop", None) == (
        given["source"].slot,
        given["source"].publication,
        given["source"].dsn,
    )
    assert ["jsonl"] == list(given["sinks"])
    assert FOR_EVER is given["reconnect"]


def test_everything_of_the_source(made, monkeypatch):
    """Each option arrives."""
    monkeypatch.setenv("SLOT", "orders")
    options = {
        "dsn": "postgresql://localhost",
        "publication": ["shop", "audit"],
        "create_slot": True,
        "temporary": True,
        "proto_version": 4,
        "streaming": "parallel",
        "two_phase": True,
        "binary": True,
        "messages": True,
        "origin": "none",
        "interface": "sql",
        "spill_dir": "/tmp",
        "transaction_buffer_bytes": 8000,
    }
    lines = [
        f"{name} = {str(value).lower()}" for name, value in options.items() if not isinstance(value, str)
    ]
    lines += [f"{name} = '{value}'" for name, value in options.items() if isinstance(value, str)]
    source = made("[source]\nslot = '${SLOT}'\n" + "\n".join(lines) + ARCHIVE)["source"]

    assert "orders" == source.slot
    options |= {"spill_dir": Path("/tmp"), "dsn": Secret(options["dsn"])}
    assert options == {name: getattr(source, name) for name in options}


def test_everything_else(made):
    """Journal, pipeline and what a sink has beside its own options; sizes in words, and inf for what never ends."""
    given = made(
        SOURCE
        + """
        [journal]
        url = "file:///var/lib/journal"
        retention = "7d 1GiB"
        compact = true
        [journal.selection]
        drop = ["*.*.password"]
        [snapshot]
        connections = 3
        chunk_bytes = "1MiB"
        max_rows_per_second = 1000
        lock_timeout = 2.5
        [pipeline]
        shutdown_timeout = "3s"
        publication_interval = "1m"
        buffer_bytes = "32MiB"
        reconnect = false
        batches = { max_bytes = "1KiB", flush_seconds = 0.5 }
        retry = { attempts = 3, timeout = inf }
        [[sinks]]
        type = "jsonl"
        name = "archive"
        path = "events"
        rotate_bytes = "1GiB"
        [sinks.batches]
        flush_bytes = 100
        [sinks.retry]
        wait_max = 5
        [sinks.selection]
        tables = ["public.*"]
        mask = ["*.*.email"]
        secret = "salt"
        """
    )
    del given["source"]
    delivery = given.pop("sinks")["archive"]

    assert "/var/lib/journal" == given.pop("journal").url
    assert {
        "snapshot": SnapshotOptions(
            connections=3, chunk_bytes=1 << 20, max_rows_per_second=1000, lock_timeout=2.5
        ),
        "retention": Retention(max_age_seconds=604_800, max_bytes=1 << 30),
        "compact": True,
        "journal_selection": Selection(drop=("*.*.password",)),
        "shutdown_timeout": "3s",
        "publication_interval": "1m",
        "buffer_bytes": 32 * 1024**2,
        "reconnect": None,
        "resnapshot": False,
        "accept_gap": False,
        "batches": BatchPolicy(max_bytes=1024, flush_seconds=0.5),
        "retry": RetryPolicy(attempts=3, timeout=None),
    } == given
    assert BatchPolicy(flush_bytes=100) == delivery.batches
    assert RetryPolicy(wait_max=5) == delivery.retry
    assert Selection(("public.*",), mask=("*.*.email",), secret="salt") == delivery.selection
    assert 1024**3 == delivery.sink._rotate_bytes


def test_no_watch(made):
    """A file switches the watch on publications off with a word, because TOML has no null."""
    assert made(SOURCE + ARCHIVE + "[pipeline]\npublication_interval = 'off'")["publication_interval"] is None


def test_a_journal_alone(made):
    """Sinks may come later, or never, when Spark reads the journal."""
    assert {} == made(SOURCE + "[journal]\nurl = '/var/lib/journal'")["sinks"]


def test_names(made):
    """Types are names, numbered from the second on, past those that are given."""
    given = made(SOURCE + ARCHIVE * 3 + "name = 'jsonl-2'" + ARCHIVE)

    assert ["jsonl", "jsonl-3", "jsonl-2", "jsonl-4"] == list(given["sinks"])


def test_dsn_of_the_environment(made, monkeypatch):
    """A file that names no server leaves that to AIOREPL_DSN, as the other commands do."""
    monkeypatch.setenv("AIOREPL_DSN", "postgresql://elsewhere")

    assert Secret("postgresql://elsewhere") == made(SOURCE + ARCHIVE)["source"].dsn


def test_the_example(capsys):
    """The example is printed as in the repository, and is valid, even with everything in it enabled."""
    assert (0, EXAMPLE, "") == command(capsys, "--example")
    assert EXAMPLE == (Path(__file__).parents[2] / "examples" / "aiorepl.toml").read_text(encoding="utf-8")

    lines = EXAMPLE.splitlines()
    switched_on = [
        line[2:] if line.startswith("# ") and ("=" in line or "[" in line) else line for line in lines
    ]
    assert {"[journal]", "[pipeline.retry]"} < set(switched_on)
    Path("mine.py").write_text("def transform(change):\n    return change\n")
    keys = {"mask": "salt", "token": 16 * "t", "encryption": 32 * "e"}
    for text in (EXAMPLE, "\n".join(switched_on)):
        written(re.sub("file:/run/secrets/(\\w+)", lambda found: keys.get(found[1], found[0]), text))
        assert (0, "aiorepl.toml is valid\n", "") == command(capsys, "--check")


def test_how_a_sink_is_served(made):
    """Everything of a delivery can be said in the file; functions by their names, in a module beside it."""
    Path("beside.py").write_text("def transform(change):\n    return change\n")
    given = made(
        SOURCE
        + ARCHIVE
        + """
        transform = "beside:transform"
        schema_changes = true
        routing_key = "{schema}.{table}"
        on_error = "dead_letter"
        dead_letters = "refused"
        order = "table"
        """
    )
    (delivery,) = given["sinks"].values()
    assert ("beside", "transform") == (delivery.transform.__module__, delivery.transform.__name__)
    assert (True, "{schema}.{table}") == (delivery.schema_changes, delivery.routing_key.template)
    assert ("dead_letter", Path("refused"), "table") == (
        delivery.on_error,
        Path(delivery.dead_letters),
        delivery.order,
    )


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("transform = 'nothing'", "sinks[1].transform: transform"),
        ("transform = 'no_such_module:f'", "sinks[1].transform: transform"),
        ("on_error = 'ignore'", "sinks[1].on_error: must be halt, dead_letter or skip"),
        ("on_error = 'dead_letter'", "sinks[1]: on_error = dead_letter needs dead_letters"),
        ("concurrency = 2", "sinks[1]: JsonLinesSink does not support concurrent writes"),
        ("routing_key = '{tabel}'", "sinks[1].routing_key:"),
    ],
)
def test_choices_that_cannot_be(capsys, line, mistake):
    """Contradictory options are mistakes with their key."""
    written(SOURCE + ARCHIVE + line)
    code, _, err = command(capsys, "--check")
    assert 2 == code
    assert mistake in err
