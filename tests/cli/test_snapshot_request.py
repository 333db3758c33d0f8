"""``aiorepl snapshot`` refuses a request that the pipeline would reject, and then writes no signal."""

from __future__ import annotations

import pytest


@pytest.fixture
async def pipeline(published, tmp_path):
    """A pipeline's file. Its publication has only one of three tables."""
    await published.create_slot()
    await published.execute(
        "DROP PUBLICATION p",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "CREATE TABLE keyless (id int)",
        "CREATE TYPE mood AS ENUM ('happy')",
        "ALTER TABLE items ADD mood mood",
        "CREATE PUBLICATION p FOR TABLE items, keyless",
    )
    file = tmp_path / "aiorepl.toml"
    file.write_text(
        f"[source]\ndsn = '{published.dsn}'\nslot = '{published.slot}'\npublication = 'p'\n"
        f"[journal]\nurl = '{tmp_path / 'journal'}'\n"
    )
    return str(file)


REFUSED = {
    "table public.itmes does not exist: did you mean public.items?": ["itmes"],
    "table shop.items does not exist": ["public.items", "shop.items"],
    'table public.others is not published by p: ALTER PUBLICATION "p" ADD TABLE "public"."others"': [
        "others"
    ],
    'where names "idd", which is no column of table public.items': ["items", "--where", "idd = 1"],
    "where does not fit table public.items: syntax error": ["items", "--where", "id = = 1"],
    "where does not fit table public.items: invalid input syntax for type integer": [
        "items",
        "--where",
        "id = 'x'",
    ],
    "where does not fit table public.items: argument of WHERE must be type boolean": [
        "items",
        "--where",
        "id",
    ],
    'where may compare "mood" of table public.items only by': ["items", "--where", "mood > 'happy'"],
    "where may only compare columns with constants": ["items", "--where", "id = (select 1)"],
    "table public.keyless has no replica identity with a key": ["keyless", "--where", "id = 1"],
}


@pytest.mark.parametrize("text", REFUSED)
async def test_refused(run, published, pipeline, text):
    """The error names what is wrong, and the stream gets no message."""
    before = await published.connection.fetchval("SELECT pg_current_wal_insert_lsn()")
    done = await run("snapshot", "--pipeline", pipeline, *REFUSED[text])
    assert (2, True) == (done.code, text in done.err), done.err
    query = "SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, 'proto_version', '1', 'publication_names', 'p', 'messages', 'true') WHERE lsn >= $2 AND get_byte(data, 0) = 77"
    assert 0 == await published.connection.fetchval(query, published.slot, before)


async def test_accepted(run, published, pipeline):
    """A table, several tables, and a condition are signalled; a table that is gone can be cancelled."""
    for arguments in (
        ["items"],
        ["public.items", "public.keyless"],
        ["items", "--where", "id <= 5 AND note LIKE 'a%'"],
    ):
        done = await run("snapshot", "--pipeline", pipeline, *arguments)
        assert (0, "snapshot signalled at ") == (done.code, done.out[:22]), done.err
    done = await run("snapshot", "--pipeline", pipeline, "--cancel", "gone")
    assert (0, "cancel signalled at ") == (done.code, done.out[:20]), done.err


async def test_without_the_publications(run, published, pipeline):
    """With ``--slot`` alone the pipeline's publications are unknown: a table must be in any one."""
    named = ["snapshot", "--dsn", published.dsn, "--slot", published.slot]
    done = await run(*named, "others")
    assert (2, True) == (done.code, "table public.others is not published by p" in done.err), done.err
    assert 0 == (await run(*named, "items")).code
    await published.execute("DROP PUBLICATION p")
    done = await run(*named, "nothing")
    assert (2, True) == (
        done.code,
        "does not exist, and no table is published by any publication" in done.err,
    ), done.err
