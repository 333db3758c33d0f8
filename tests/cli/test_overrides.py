"""``aiorepl run --resnapshot`` and ``--accept-gap`` continue after a start that was rejected."""

from __future__ import annotations

import signal

import pytest

from aiorepl.journal import JournalReader

FILE = """
[source]
dsn = "{dsn}"
slot = "{slot}"
publication = "p"
create_slot = true
[journal]
url = "{folder}/journal"
[[sinks]]
type = "stdout"
"""


@pytest.fixture
def file(published, tmp_path):
    """A pipeline with a journal."""
    path = tmp_path / "aiorepl.toml"
    path.write_text(FILE.format(dsn=published.dsn, slot=published.slot, folder=tmp_path))
    return path


async def delivered(running, key):
    """Read on until the row with this key has come, and stop; gives all keys."""
    keys = []
    while key not in keys:
        event = await running.line()
        keys.append(event["key"]["id"] if event["kind"] != "truncate" else "truncate")
    running.send(signal.SIGTERM)
    await running.finished()
    return keys


@pytest.mark.parametrize(
    ("option", "expected"), [("--accept-gap", [3]), ("--resnapshot", ["truncate", 1, 2, 3])]
)
async def test_a_slot_that_was_dropped(published, file, start, run, option, expected):
    """A plain start fails with exit code 3 and names both options, which work."""
    running = await start("run", str(file))
    await published.wait_until_active()
    await published.execute("INSERT INTO items VALUES (1)")
    assert [1] == await delivered(running, 1)
    await published.execute(
        f"SELECT pg_drop_replication_slot('{published.slot}')", "INSERT INTO items VALUES (2)"
    )
    await published.create_slot()

    refused = await run("run", str(file))
    assert 3 == refused.code
    assert "--resnapshot" in refused.err
    assert "--accept-gap" in refused.err
    running = await start("run", str(file), option)
    await published.wait_until_active()
    await published.execute("INSERT INTO items VALUES (3)")
    assert expected == await delivered(running, 3)
    if option == "--accept-gap":
        assert 1 == len(JournalReader(file.parent / "journal").gaps())


async def test_without_a_journal(refused, tmp_path):
    """There is nowhere to load to."""
    path = tmp_path / "aiorepl.toml"
    path.write_text('[source]\nslot = "s"\npublication = "p"\n[[sinks]]\ntype = "stdout"\n')
    await refused(2, "a snapshot needs a journal", "run", str(path), "--resnapshot")
