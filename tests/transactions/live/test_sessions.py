"""Random sessions on a real server: every way of streaming delivers what the server says was committed."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

import asyncpg
import pytest

from aiorepl.errors import ServerError

pytestmark = pytest.mark.by_day

STEPS = 150
SETTINGS = {
    "small": "logical_decoding_work_mem = '64kB'",
    "immediate": "debug_logical_replication_streaming = immediate",
}


@pytest.fixture
def seed(request) -> int:
    """A random seed; a failure prints it."""
    seed = secrets.randbelow(1_000_000)
    print(f"seed {seed}")
    return seed


async def make_slots(tables: asyncpg.Connection, slot: str, version: int) -> dict[str, dict[str, object]]:
    """Create a slot for each way of streaming before anything is written; return the options by slot."""
    slots: dict[str, dict[str, object]] = {}
    for streaming in ("off", "on", "parallel")[: 3 if version >= 16 else 2]:
        for setting in SETTINGS if version >= 16 else ["small"]:
            for two_phase in (False, True):
                name = f"{slot[-8:]}_{streaming}_{setting}_{two_phase}".lower()
                slots[name] = {"streaming": streaming, "two_phase": two_phase}
    slots[f"{slot[-8:]}_delivered"] = {
        "streaming": "on",
        "two_phase": True,
        "deliver_prepared": True,
    }
    for name, options in slots.items():
        statement = "SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, $2)"
        await tables.execute(statement, name, options["two_phase"])
    await tables.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
    return slots


async def use(tables: asyncpg.Connection, setting: str) -> None:
    """Have the database's walsenders decode with this setting."""
    name = await tables.fetchval("SELECT current_database()")
    await tables.execute(f'ALTER DATABASE "{name}" RESET ALL')
    await tables.execute(f'ALTER DATABASE "{name}" SET {SETTINGS[setting]}')


@contextmanager
def skipped_if_undecodable(seed: int) -> Iterator[None]:
    """Skip a load that the server itself cannot decode: its SQL functions fail in the same way (seed 708191 on 18)."""
    try:
        yield
    except ServerError as error:
        # "filenode" up to PostgreSQL 15, "filenumber" since.
        if error.sqlstate != "XX000" or not re.search("could not map file(node|number)", str(error)):
            raise
        pytest.skip(f"PostgreSQL cannot decode the load of seed {seed}: {error}")


@pytest.mark.parametrize("server", [16, 18], indirect=True)
async def test_every_way_to_be_sent(seed, server, tables, slot_name, load, deliver, plain, events):
    """Streaming off, on and parallel, with two-phase commit and without, at once or past 64 kB: the same changes with
    the same identities in the same order as the server's SQL function tells without any of that.
    """
    slots = await make_slots(tables, slot_name, server.version)
    done = await load(seed, STEPS)
    expected = events(await plain(slot_name))
    assert len(expected) > 5

    for slot, options in slots.items():
        await use(tables, "small" if "small" in slot else "immediate")
        with skipped_if_undecodable(seed):
            slices = await deliver(slot, **options)
        if "deliver_prepared" not in options:
            assert expected == events(slices), f"{options}, seed {seed}"
            continue
        assert done.decided == [
            ({"C": "COMMIT PREPARED", "R": "ROLLBACK PREPARED"}.get(kind[0], "PREPARE"), part.two_phase.gid)
            for part in slices
            if part.two_phase is not None
            for kind in [type(part.two_phase).__name__]
        ]
        assert _by_xid(expected).items() <= _by_xid(events(slices)).items(), f"seed {seed}"

    for table, rows in _replayed(expected).items():
        left = {row["id"]: dict(row) for row in await tables.fetch(f"SELECT * FROM {table}")}
        assert left.keys() == rows.keys(), f"seed {seed}"
        # Columns that were added later have their default there.
        assert all(rows[key].items() <= left[key].items() for key in rows), f"seed {seed}"


@pytest.mark.parametrize("server", [16, 18], indirect=True)
async def test_it_is_streamed(server, tables, slot_name, load):
    """The load of these tests makes the server stream, abort and prepare streamed transactions."""
    await tables.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", slot_name)
    await load(1, 3 * STEPS)

    await tables.execute("SET debug_logical_replication_streaming = immediate")
    kinds = await tables.fetch(
        "SELECT DISTINCT chr(get_byte(data, 0)) AS kind FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, "
        "'proto_version', '4', 'publication_names', 'p', 'streaming', 'parallel', 'messages', 'true')",
        slot_name,
    )

    assert set("SEcApKrRIUDM") <= {row["kind"] for row in kinds}


@pytest.mark.parametrize("server", [15], indirect=True)
async def test_as_test_decoding_says(seed, server, tables, slot_name, load, deliver, events):
    """The server's plugin test_decoding, which is independent of pgoutput, reports the same changes."""
    slots = await make_slots(tables, slot_name, server.version)
    await tables.execute(
        "SELECT pg_create_logical_replication_slot($1, 'test_decoding')", f"{slot_name[-8:]}_td"
    )
    await load(seed, STEPS)
    rows = await tables.fetch(
        "SELECT lsn, xid::text::int AS xid, data FROM pg_logical_slot_peek_changes($1, NULL, NULL, 'skip-empty-xacts', '1')",
        f"{slot_name[-8:]}_td",
    )
    expected = []
    for _, same in groupby(rows, lambda row: (row["xid"], row["lsn"])):
        told = [event for row in same if (event := _read(row["xid"], row["data"])) is not None]
        # A message has the LSN of its record's end, at which the next record begins; the message comes first.
        expected += sorted(told, key=lambda event: event[1] != "message")
    assert len(expected) > 5

    await use(tables, "small")
    for slot, options in slots.items():
        if "deliver_prepared" not in options:
            with skipped_if_undecodable(seed):
                slices = await deliver(slot, **options)
            found = [_as_test_decoding(event) for event in events(slices)]
            assert expected == found, f"{options}, seed {seed}"


@pytest.mark.parametrize("server", [15, 16, 18], indirect=True)
async def test_columns_published_meanwhile(tables, connections, slot_name, deliver, events):
    """A stream that began before a publication changed does not restore the old form of its tables at its commit."""
    await tables.execute("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot_name)
    (writer,) = await connections(1)
    async with writer.transaction():
        await writer.execute("INSERT INTO one VALUES (1, 'both columns')")
        # Enough to be streamed; what is left for the commit is of the other table.
        await writer.execute("INSERT INTO two SELECT i, repeat('x', 100) FROM generate_series(1, 2000) i")
        await tables.execute("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE one (id), two")
        await tables.execute("INSERT INTO one VALUES (2, 'not published')")
    await tables.execute("INSERT INTO one VALUES (3, 'not published')")
    await use(tables, "small")

    found = events(await deliver(slot_name, streaming="on"))

    rows = [new for *_, table, _, new in found if table == "one"]
    assert [{"id": 2}, {"id": 1, "note": "both columns"}, {"id": 3}] == rows


def _by_xid(events) -> dict:
    rows: dict = {}
    for event in events:
        if event[0] is not None:
            rows.setdefault(event[0], []).append(event[2:])
    return rows


def _replayed(events) -> dict[str, dict[int, dict]]:
    """The rows of both tables once all of this was done to them."""
    tables: dict[str, dict[int, dict]] = {"one": {}, "two": {}}
    for _, _, _, kind, what, *rows in events:
        if kind == "truncate":
            for table in what:
                tables[table].clear()
        elif kind == "delete":
            del tables[what][rows[0]["id"]]
        elif kind != "message":
            tables[what][rows[1]["id"]] = rows[1]
    return tables


COLUMN = re.compile(r"(\w+)\[[^\]]+\]:('(?:[^']|'')*'|\S+)")


def _read(xid: int, line: str):
    if line.startswith("message: "):
        transactional = "transactional: 1" in line
        return xid if transactional else None, "message", line.split("prefix: ")[1].split(",", maxsplit=1)[0]
    if not line.startswith("table "):
        return None
    where, kind, columns = line.removeprefix("table public.").split(": ", 2)
    if kind == "TRUNCATE":
        return xid, "truncate", where.replace("public.", "").split(", ")
    values = {name: raw.strip("'") for name, raw in COLUMN.findall(columns) if raw != "null"}
    return xid, kind.lower(), where, values


def _as_test_decoding(event):
    xid, _, _, kind, what, *rest = event
    if kind in ("message", "truncate"):
        return xid, kind, what
    old, new = rest
    values = {"id": old["id"]} if kind == "delete" else new
    return xid, kind, what, {name: str(value) for name, value in values.items() if value is not None}
