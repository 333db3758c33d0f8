"""``aiorepl check``: each thing that would go wrong is found before, and nothing is changed by looking."""

from __future__ import annotations

import json

import pytest

from aiorepl import Pipeline, Source
from aiorepl.testing import MemorySink


@pytest.fixture
def check(run, published):
    """Check with these arguments; gives the exit code, and of each thing that was looked at the level and text."""

    async def check(*arguments, **environment):
        given = arguments or ("--slot", published.slot, "--publication", "p")
        done = await run("check", "--json", *given, **{"AIOREPL_DSN": published.dsn} | environment)
        assert "" == done.err
        told = json.loads(done.out)
        assert told["ok"] is (done.code == 0)
        # Of WAL there may be several, as the server is set.
        return done.code, {
            finding["about"]: (finding["level"], finding["text"]) for finding in told["findings"]
        }

    return check


async def test_nothing_is_wrong(check, published):
    """All is looked at, and the slot that the first start would make is not made."""
    code, found = await check()
    assert (0, ["server", "publication", "replica identity", "slot"]) == (code, list(found)[:4])
    assert {"ok"} == {level for about, (level, _) in found.items() if about != "WAL"}
    assert "does not exist yet" in found["slot"][1]
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    assert 0 == await published.connection.fetchval(query, published.slot)


async def test_for_people(run, published):
    """A line for each."""
    told = await run("check", "--dsn", published.dsn, "--slot", published.slot, "--publication", "p")
    assert (0, "ok       server            PostgreSQL ") == (told.code, told.out[:38])


async def test_tables_and_publications(check, published):
    """``check`` reports a table whose updates the server would reject, an empty publication and a missing one."""
    await published.execute("CREATE TABLE keyless (note text)", "CREATE PUBLICATION none")
    assert "public.keyless: no replica identity" in (await check())[1]["replica identity"][1]
    await published.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    assert "ok" == (await check())[1]["replica identity"][0]

    code, found = await check("--slot", published.slot, "--publication", "none")
    assert (0, "warning") == (code, found["publication"][0])
    code, found = await check("--slot", published.slot, "--publication", "p,nope")
    assert (2, "error") == (code, found["publication"][0])
    assert "ok" == found["slot"][0]


async def test_the_connection(check):
    """A connection that fails is the only finding, without the password."""
    code, found = await check(
        *("--slot", "s", "--publication", "p"), AIOREPL_DSN="postgresql://u:s3cret@127.0.0.1:1/d"
    )
    assert (3, ["connection"]) == (code, list(found))
    assert "s3cret" not in str(found)


async def test_slots(check, published, start):
    """One that is in use just now is warned of; one that is for something else is an error."""
    reader = await start(
        *("tail", "--dsn", published.dsn, "--slot", published.slot, "--publication", "p", "--create-slot")
    )
    await published.wait_until_active()
    code, found = await check()
    assert (0, "warning") == (code, found["slot"][0])
    reader.process.kill()
    await reader.process.wait()

    other = f"{published.slot[:50]}_other"
    await published.connection.execute("SELECT pg_create_physical_replication_slot($1)", other)
    code, found = await check("--slot", other, "--publication", "p")
    assert (3, "error") == (code, found["slot"][0])
    await published.connection.execute("SELECT pg_drop_replication_slot($1)", other)


async def test_a_file(check, published, tmp_path):
    """``check`` reports mistakes in a file, a missing slot that is not created, and a journal of another slot or behind it."""
    journal, file = tmp_path / "journal", tmp_path / "aiorepl.toml"

    def write(slot, more=""):
        file.write_text(
            f"[source]\nslot = '{slot}'\npublication = 'p'\n{more}\n[journal]\nurl = '{journal}'\n"
            "[[sinks]]\ntype = 'jsonl'\npath = 'out'\n"
        )

    write(published.slot, "slt = 1\nstreaming = 'x'")
    code, found = await check(str(file))
    assert (2, ["file"]) == (code, list(found))
    write(published.slot)
    code, found = await check(str(file))
    assert (3, "error") == (code, found["slot"][0])

    source = Source(published.dsn, slot=published.slot, publication="p", create_slot=True)
    await Pipeline(source, [MemorySink()], journal=str(journal), until="now").run()
    await published.execute("INSERT INTO items VALUES (1)")
    await Pipeline(source, [MemorySink()], journal=str(journal), until="now").run()
    code, found = await check(str(file))
    assert (0, "ok", "ok") == (code, found["journal"][0], found["slot"][0])

    await published.execute("INSERT INTO items VALUES (2)")
    await Pipeline(source, [MemorySink()], until="now").run()
    code, found = await check(str(file))
    assert (3, "error") == (code, found["journal"][0])
    assert "the slot no longer has" in found["journal"][1]

    write("another", "create_slot = true")
    code, found = await check(str(file))
    assert (3, "error") == (code, found["journal"][0])
    assert "holds a position of slot" in found["journal"][1]


async def test_folders(run, published, tmp_path):
    """Each folder of the pipeline is checked, and none is created."""
    file = tmp_path / "aiorepl.toml"

    async def found(spill, state, table="[snapshot]\nstate"):
        file.write_text(
            f"[source]\nslot = '{published.slot}'\npublication = 'p'\ncreate_slot = true\nspill_dir = '{spill}'\n"
            f"{table} = '{state}'\n[[sinks]]\ntype = 'jsonl'\npath = '{tmp_path / 'out'}'\n"
        )
        done = await run("check", "--json", str(file), AIOREPL_DSN=published.dsn)
        return done.code, [
            each["text"] for each in json.loads(done.out)["findings"] if each["about"] == "folders"
        ]

    good = [tmp_path / "spill", tmp_path / "state"]
    assert (
        0,
        [f"spill_dir {good[0]} can be written", f"the state of the snapshot {good[1]} can be written"],
    ) == (await found(*good))
    assert ["aiorepl.toml"] == [path.name for path in tmp_path.iterdir()]
    (tmp_path / "file").touch()
    code, (_, state) = await found(good[0], tmp_path / "file" / "state")
    assert 2 == code
    assert "Not a directory" in state

    (tmp_path / "file").unlink()
    state_dir = "[pipeline]\nstate_dir"
    code, (_, state) = await found(*good, state_dir)
    assert (0, f"state_dir {good[1]} can be written") == (code, state)
    assert ["aiorepl.toml"] == [path.name for path in tmp_path.iterdir()]
    code, (_, state) = await found(good[0], "/proc/state", state_dir)
    assert (2, True) == (code, state.startswith("state_dir /proc/state: ")), state


async def test_selections(check, published, tmp_path):
    """A pattern that matches nothing is an error; one that goes by a partitioned table is warned of."""
    await published.execute(
        "CREATE TABLE people (id int, email text) PARTITION BY LIST (id)",
        "CREATE TABLE few PARTITION OF people FOR VALUES IN (1)",
    )
    file = tmp_path / "aiorepl.toml"

    async def found(selection):
        file.write_text(
            f"[source]\nslot = '{published.slot}'\npublication = 'p'\ncreate_slot = true\n"
            f"[[sinks]]\ntype = 'jsonl'\nname = 'archive'\npath = 'out'\n[sinks.selection]\nsecret = 's'\n{selection}\n"
        )
        code, findings = await check(str(file))
        return code, *findings["selection"]

    assert (0, "ok", "sink archive: every pattern matches a published table or column") == await found(
        "tables = ['public.items']"
    )
    code, level, text = await found("mask = ['public.people.emial']")
    assert (2, "error") == (code, level)
    assert "sink archive: mask: 'public.people.emial' matches no column" in text
    code, level, text = await found("mask = ['public.people.email']")
    assert (0, "warning") == (code, level)
    assert "partitions of public.people are published under their own names" in text
    await published.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    assert "ok" == (await found("mask = ['public.people.email']"))[1]
    code, level, text = await found(
        f"[journal]\nurl = '{tmp_path / 'journal'}'\n[journal.selection]\ndrop = ['public.people.passwort']"
    )
    assert (2, "error") == (code, level)
    assert "sink journal: drop: 'public.people.passwort' matches no column" in text


async def test_what_to_look_at(refused):
    """A file, or both a slot and a publication."""
    await refused(2, "pass --slot and --publication", "check", "--slot", "s")
    await refused(2, "or else a file", "check", "x.toml", "--slot", "s", "--publication", "p")
    await refused(
        2, "add --slot and --publication, or a pipeline's file", "check", "--dsn", "postgresql://h/d"
    )
