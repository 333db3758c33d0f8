"""``aiorepl check`` names what the server would refuse or not send, with the statement that mends it."""

from __future__ import annotations

import json

import asyncpg
import pytest

from aiorepl import Source
from aiorepl.source.diagnose.capacity import limits


@pytest.fixture
def advice(run, published):
    """Check, and give the findings of one subject: level, text and statement."""

    async def advice(about, publication="p"):
        done = await run(
            *("check", "--json", "--slot", published.slot, "--publication", publication),
            AIOREPL_DSN=published.dsn,
        )
        return [
            (finding["level"], finding["text"], finding["sql"])
            for finding in json.loads(done.out)["findings"]
            if finding["about"] == about
        ]

    return advice


async def test_before_the_publication_exists(advice, published):
    """The statement creates it for the tables that have a key, and can be run as it is; the others are named."""
    await published.execute("CREATE TABLE keyless (note text)", 'CREATE TABLE "Odd one" (id int PRIMARY KEY)')
    ((level, text, sql),) = await advice("publication", "shop")
    assert ("error", True) == (level, "keyless" in text)
    await published.execute(sql)
    ((level, text, _),) = await advice("publication", "shop")
    assert ("ok", "shop: 2 tables") == (level, text)


async def test_what_can_be_published(advice, published):
    """Any replica identity is enough; if no table has one, no statement is printed, because it could not be run unchanged."""
    await published.execute("DROP TABLE items CASCADE", "CREATE TABLE whole (note text)")
    ((_, text, sql),) = await advice("publication", "shop")
    assert (True, None) == ("FOR TABLE name" in text, sql)
    await published.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    ((_, _, sql),) = await advice("publication", "shop")
    assert 'CREATE PUBLICATION "shop" FOR TABLE public.whole;' == sql


async def test_lists_of_columns_that_differ(advice, published):
    """Publications that list different columns of a table are an error, because the server sends no change of it."""
    await published.execute(
        "CREATE PUBLICATION short FOR TABLE items (id)", "CREATE PUBLICATION long FOR TABLE items"
    )
    assert ["ok"] == [level for level, _, _ in await advice("publication", "short")]
    _, (level, text, _) = await advice("publication", "long,short")
    assert ("error", True) == (level, "items: long, short publish different columns" in text)


async def test_filters_and_lists(advice, published):
    """A row filter beyond the replica identity and a list of columns without it are found, and what is advised helps."""
    await published.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, note text)",
        "CREATE PUBLICATION fine FOR TABLE items WHERE (id > 5), plain (id)",
        "CREATE PUBLICATION wrong FOR TABLE items WHERE (id > 5 AND note <> 'x'), plain (note)",
    )
    assert ["ok"] == [level for level, _, _ in await advice("replica identity", "fine")]
    filtered, unlisted = await advice("replica identity", "wrong")
    assert "the row filter of wrong uses columns outside of the replica identity (note)" in filtered[1]
    assert "the column list of wrong lacks columns of the replica identity (id)" in unlisted[1]
    with pytest.raises(Exception, match="not part of the replica identity"):
        await published.execute("INSERT INTO items VALUES (1)", "UPDATE items SET note = 'y'")
    await published.execute(filtered[2])
    assert [unlisted] == await advice("replica identity", "wrong")


async def test_what_is_not_sent(advice, published):
    """Partitions under their own names and generated columns are named, and the statements change that."""
    await published.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (9)",
    )
    first, partitions, generated = await advice("publication")
    assert "ok" == first[0] == partitions[0] == generated[0]
    assert "parts_1.twice" in generated[1]
    await published.execute(partitions[2], generated[2])
    assert 1 == len(await advice("publication"))


async def test_generated_columns_that_cannot_be_sent(advice, published):
    """No statement is given for a virtual column, nor for a list without the column: neither would be sent."""
    await published.execute(
        "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        " thrice int GENERATED ALWAYS AS (id * 3) VIRTUAL)",
        "CREATE PUBLICATION listed FOR TABLE made (id)",
    )
    _, (_, text, sql) = await advice("publication", "listed")
    assert (True, None) == ("made.twice" in text, sql)
    _, (_, text, sql) = await advice("publication")
    await published.execute(sql)
    _, (_, text, sql) = await advice("publication")
    assert (True, None) == (text.endswith(": public.made.thrice"), sql)


class Answers:
    """A connection to a server with these settings."""

    def __init__(self, senders, **settings):
        self.senders = senders
        self.settings = {
            "max_wal_senders": "10",
            "idle_replication_slot_timeout": "0",
            "synchronous_standby_names": "",
        } | settings

    async def query(self, sql):
        if "pg_stat_replication" in sql:
            return [{"senders": str(self.senders)}]
        return [{"name": name, "setting": setting} for name, setting in self.settings.items()]


@pytest.mark.parametrize(
    ("senders", "settings", "found"),
    [
        (1, {}, ""),
        (8, {}, ""),
        (9, {}, "8 of 10 walsenders are taken"),
        (1, {"idle_replication_slot_timeout": "3600"}, "idle_replication_slot_timeout is 3600 s"),
        (1, {"synchronous_standby_names": "ANY 1 (*)"}, "commits on the server would wait"),
        (1, {"synchronous_standby_names": "FIRST 1 (berlin)"}, ""),
    ],
    ids=["nothing", "room", "senders", "idle", "synchronous", "others"],
)
async def test_limits(senders, settings, found):
    """Settings that act on this consumer are warned of, and no others."""
    findings = await limits(
        Answers(senders, **settings), Source("postgresql://h/d", slot="s", publication="p")
    )
    assert [found] * bool(found) == [found for each in findings if found in each.text]
    assert bool(found) == bool(findings)


@pytest.mark.parametrize("version", [13, 18, 19])
async def test_what_is_never_sent(run, servers, new_database, slot_name, version):
    """Unlogged tables are named and large objects counted, whichever schema they are in; without any, there is no such line."""
    dsn = new_database(servers(version))
    connection = await asyncpg.connect(dsn)
    options = ("--dsn", dsn, "--slot", slot_name, "--publication", "p")
    try:
        await connection.execute(
            "CREATE TABLE kept (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE kept"
        )
        assert "not replicated" not in (await run("check", *options)).out
        await connection.execute("CREATE SCHEMA apart; CREATE UNLOGGED TABLE apart.cache (id int)")
        await connection.execute("SELECT lo_create(0), lo_create(0)")
        told = (await run("check", *options)).out
    finally:
        await connection.close()
    found = [line for line in told.splitlines() if "not replicated" in line]
    assert ["apart.cache", "has 2"] == [
        word for word, line in zip(("apart.cache", "has 2"), found, strict=True) if word in line
    ]
