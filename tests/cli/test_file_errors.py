"""Mistakes in the file of ``aiorepl run``, and their messages. Nothing connects."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from aiorepl import plugins
from aiorepl.cli import main
from aiorepl.cli.pipeline_file import load
from aiorepl.cli.toml_tables import InvalidFile
from aiorepl.pipeline.registry import GROUP

SOURCE = "[source]\nslot = 'orders'\npublication = 'shop'\n"
ARCHIVE = "\n[[sinks]]\ntype = 'jsonl'\npath = 'events'\n"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    """An empty folder, two sinks of which one cannot be imported, and none of our variables."""
    installed = {
        "jsonl": EntryPoint("jsonl", "aiorepl_sinks.jsonl:JsonLinesSink", GROUP),
        "broken": EntryPoint("broken", "no_such_module:Sink", GROUP),
    }
    found = plugins.installed
    monkeypatch.setattr(
        plugins,
        "installed",
        lambda group, *built_in: installed if group == GROUP else found(group, *built_in),
    )
    monkeypatch.delenv("AIOREPL_DSN", raising=False)
    monkeypatch.chdir(tmp_path)


def written(text):
    """The file, in the current folder and under its usual name."""
    path = Path("aiorepl.toml")
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_wrong_with_one_sink():
    """The mistakes of a sink's function, key and concurrency are reported together, each by its name."""
    text = ARCHIVE + "transform = 'nowhere:f'\nrouting_key = '{'\norder = 'routing_key'\nconcurrency = 0\n"
    with pytest.raises(InvalidFile) as told:
        load(written(SOURCE + text))
    assert ["transform", "routing_key", "concurrency"] == [
        line.split("sinks[1].")[1].split(":")[0] for line in told.value.lines
    ]


def command(capsys, *arguments):
    """Exit code, output and errors of ``aiorepl run``."""
    with pytest.raises(SystemExit) as ended:
        main(["run", *arguments])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "",
            [
                "source: missing: a table with slot and publication",
                "sinks: missing: at least one [[sinks]] with a type, or a [journal]",
            ],
        ),
        ("[source]" + ARCHIVE, ["source.publication: missing", "source.slot: missing"]),
        ("source = 1" + ARCHIVE, ["source: must be a table"]),
        ("sorce = 1\n" + SOURCE + ARCHIVE, ["sorce: unknown; did you mean source?"]),
        (
            "zzz = 1\n" + SOURCE + ARCHIVE,
            ["zzz: unknown; use one of http, journal, pipeline, sinks, snapshot, source"],
        ),
        (
            SOURCE
            + "slt = 1\nproto_version = 5\nstreaming = 'x'\norigin = 'x'\ninterface = true\nspill_dir = 1"
            + ARCHIVE,
            [
                "source.slt: unknown; did you mean slot?",
                "source.proto_version: must be 1, 2, 3 or 4",
                "source.streaming: must be off, on or parallel",
                "source.origin: must be any or none",
                "source.interface: must be walsender or sql",
                "source.spill_dir: must be a path",
            ],
        ),
        (
            SOURCE + "temporary = true" + ARCHIVE,
            ["source: temporary needs create_slot (--create-slot)"],
        ),
        (
            SOURCE + "transaction_buffer_bytes = 0" + ARCHIVE,
            ["source.transaction_buffer_bytes: must be at least 1"],
        ),
        ("[source]\nslot=''\npublication='p'" + ARCHIVE, ["source: name a replication slot"]),
        (SOURCE + "[journal]\nsnapshot = true", ["journal.url: missing"]),
        (
            # Parts of the value are in the advice.
            SOURCE + '[journal]\nurl = "j"\nretention = "7d 100GB 7"',
            [
                (
                    "journal.retention: retention '…' is not valid: give an age such as 7d or 12h, a size such as 100GB, "
                    "or both: 7d 100GB"
                )
            ],
        ),
        (SOURCE + "[journal]\nurl = ''", ["journal: journal: url is empty"]),
        (
            "sinks = []\n" + SOURCE,
            ["sinks: is empty: write at least one [[sinks]] with a type, or a [journal]"],
        ),
        ("journal = 1\n" + SOURCE, ["journal: must be a table"]),
        (
            SOURCE + "[journal]\nurl = 's3://bucket/key'\nconfig = {access_kex_id = 'test-secret'}",
            [
                "journal: config has a key that obstore does not support for s3://: one of access_kex_id",
            ],
        ),
        (
            SOURCE
            + ARCHIVE
            + "[pipeline]\nshutdown_timeout = -1\nbuffer_bytes = '16q'\nreconnect = 'no'\nretries = 1",
            [
                "pipeline.shutdown_timeout: must be at least 0",
                'pipeline.buffer_bytes: must be a size such as 1048576 or "16MiB"',
                "pipeline.reconnect: must be true or false",
                "pipeline.retries: unknown; did you mean retry?",
            ],
        ),
        (
            SOURCE + ARCHIVE + "[pipeline]\nshutdown_timeout = inf",
            ["pipeline.shutdown_timeout: must be a finite number"],
        ),
        (
            SOURCE + ARCHIVE + "[pipeline.retry]\nattempts = 0\ntimeout = -1\nwait_intial = 1",
            [
                "pipeline.retry.attempts: must be at least 1",
                "pipeline.retry.timeout: must be at least 0",
                "pipeline.retry.wait_intial: unknown; did you mean wait_initial?",
            ],
        ),
        (SOURCE + "[sinks]\ntype = 'jsonl'", ["sinks: must be an array of tables: write [[sinks]]"]),
        (
            SOURCE
            + "[[sinks]]\npath = 'x'\n[[sinks]]\ntype = 'json'\n[[sinks]]\ntype = 'zzz'\n[[sinks]]\ntype = 1\n"
            + "[[sinks]]\ntype = 'broken'",
            [
                "sinks[1].type: missing: one of broken, jsonl",
                "sinks[2].type: no sink 'json' is installed; did you mean jsonl?",
                "sinks[3].type: no sink 'zzz' is installed; use one of broken, jsonl",
                "sinks[4].type: must be a string",
                "sinks[5].type: needs no_such_module: pip install no_such_module",
            ],
        ),
        (
            SOURCE
            + ARCHIVE
            + "[[sinks]]\ntype = 'jsonl'\npth = 'x'\nnam = 'x'\n[sinks.batches]\nmax_byts = 1",
            [
                "sinks[2].pth: unknown; did you mean path?",
                "sinks[2].nam: unknown; did you mean name?",
                "sinks[2].batches.max_byts: unknown; did you mean max_bytes?",
                "sinks[2].path: missing",
            ],
        ),
        (
            SOURCE + (ARCHIVE + "name = 'a'") * 2 + ARCHIVE + "name = ''" + ARCHIVE + "name = 1",
            [
                "sinks[2].name: is already the name of sinks[1]",
                "sinks[3].name: is empty",
                "sinks[4].name: must be a string",
            ],
        ),
        (
            SOURCE + "[journal]\nurl = '/x'" + ARCHIVE + "name = 'journal'",
            ["sinks[1].name: is already the name of the journal"],
        ),
        (
            SOURCE + "[journal]\nurl = '/x'\n[journal.selection]\ntables = ['public.*']" + ARCHIVE,
            [
                (
                    "pipeline: the selection of a journal takes drop, mask and keep, but no tables or kinds, because a journal has whole "
                    "transactions: change the publication (ALTER PUBLICATION … SET TABLE …, or SET (publish = '…') for kinds), or set tables "
                    "and kinds in the selections of the sinks"
                )
            ],
        ),
        (
            SOURCE + ARCHIVE + "values = 'zzz'" + ARCHIVE + "[sinks.selection]\nkinds = ['insrt']",
            [
                "sinks[1].values: must be typed or text",
                "sinks[2].selection: kinds: '…' is not one of insert, read, update, delete, truncate, message, or one of these after !",
            ],
        ),
    ],
)
def test_mistakes(text, expected):
    """All mistakes are reported at once, each with its key."""
    with pytest.raises(InvalidFile) as caught:
        load(written(text))

    assert [f"aiorepl.toml: {line}" for line in expected] == caught.value.lines


def test_mistakes_on_the_command_line(capsys):
    """A line each on standard error, and exit code 2."""
    written("[source]\nslot = 1" + ARCHIVE)

    assert (
        2,
        "",
        """\
aiorepl: aiorepl.toml: source.slot: must be a string
aiorepl: aiorepl.toml: source.publication: missing
""",
    ) == command(capsys)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "my.toml does not exist; create an example with: aiorepl run --example > my.toml"),
        (
            b"[source",
            "my.toml is not TOML: Expected ']' at the end of a table declaration (at end of document)",
        ),
        (
            b'a = "x\nb = 1',
            "my.toml is not TOML: Illegal character '\\n' (at line 1, column 7): is a quote missing at the end of the line?",
        ),
        (b"a = x", "my.toml is not TOML: Invalid value (at line 1, column 5): texts have quotes"),
        (b"a = '\xff'", "my.toml is not TOML: it is not text in UTF-8"),
    ],
)
def test_no_such_file(capsys, content, expected):
    """A file that is missing or no TOML is reported on one line, with how to begin."""
    if content is not None:
        Path("my.toml").write_bytes(content)

    assert (2, "", f"aiorepl: {expected}\n") == command(capsys, "my.toml")


def test_a_folder(capsys):
    """A folder is no file."""
    assert (2, "", "aiorepl: . cannot be read: Is a directory\n") == command(capsys, ".")


def test_a_byte_order_mark(tmp_path):
    """A file that an editor of Windows has written is read, and so is a secret."""
    secret = tmp_path / "dsn"
    secret.write_text("postgresql://host/shop", encoding="utf-8-sig")
    path = Path("aiorepl.toml")
    path.write_text(SOURCE + f"dsn = 'file:{secret}'\n" + ARCHIVE, encoding="utf-8-sig")

    assert load(path).source.slot == "orders"


def test_a_list_that_is_continued(capsys):
    """``sinks = []`` before ``[[sinks]]`` is an error of TOML, which says which line to leave out."""
    written("sinks = []\n" + SOURCE + ARCHIVE)
    code, _, err = command(capsys)

    assert code == 2
    assert "such as [], which cannot be extended: leave that line out" in err
