"""Options that a server does not support are rejected before the server is asked, with the version that supports them."""

from __future__ import annotations

import json

import asyncpg
import pytest

from aiorepl import Pipeline, Source, connect
from aiorepl.errors import ConfigurationError
from aiorepl.formats.native import NativeFormat
from aiorepl.pgoutput.options import best_version
from aiorepl.testing.faults import MemorySink

# The option by the name we give it, how it is asked for, and the first server that has it.
OPTIONS = [
    ("proto_version 2", {"proto_version": 2}, 14),
    ("proto_version 3", {"proto_version": 3}, 15),
    ("proto_version 4", {"proto_version": 4}, 16),
    ("binary", {"binary": True}, 14),
    ("messages", {"messages": True}, 14),
    ("streaming=on", {"streaming": "on"}, 14),
    ("streaming=parallel", {"streaming": "parallel"}, 16),
    ("two_phase", {"two_phase": True}, 15),
    ("origin", {"origin": "any"}, 16),
    ("origin", {"origin": "none"}, 16),
]
LACKING = [
    pytest.param(
        server, name, asked, first, id="-".join([str(server), *map(str, asked), *map(str, asked.values())])
    )
    for server in range(13, 19)
    for name, asked, first in OPTIONS
    if server < first
]


@pytest.mark.parametrize(("version", "name", "asked", "first"), LACKING)
async def test_an_option_the_server_lacks(database, slot_name, client, version, name, asked, first):
    """An unsupported option is rejected by each interface before a slot is created, and by the server itself."""
    for route in ("walsender", "sql"):
        with pytest.raises(ConfigurationError) as caught:
            async with connect(
                database, slot=slot_name, publication="p", create_slot=True, interface=route, **asked
            ):
                pass
        assert f"{name} needs PostgreSQL {first} or later; this server is {version}" == str(caught.value)
    made = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1"
    assert 0 == await client.fetchval(made, slot_name)

    await client.fetchval("SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)", slot_name)
    said = {"publication_names": "p", "proto_version": str(best_version(version))}
    said |= {option: "true" if value is True else str(value) for option, value in asked.items()}
    with pytest.raises(asyncpg.PostgresError):
        await client.fetch(
            "SELECT pg_logical_slot_peek_binary_changes($1, NULL, NULL, VARIADIC $2::text[])",
            slot_name,
            [part for pair in said.items() for part in pair],
        )


@pytest.mark.parametrize(
    ("asked", "needed"),
    [
        ({"proto_version": 1, "streaming": "on"}, "streaming=on needs proto_version 2 or later, not 1"),
        (
            {"proto_version": 3, "streaming": "parallel"},
            "streaming=parallel needs proto_version 4 or later, not 3",
        ),
        ({"proto_version": 2, "two_phase": True}, "two_phase needs proto_version 3 or later, not 2"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("version", [18])
async def test_an_option_the_version_lacks(database, slot_name, client, asked, needed):
    """An option that the chosen protocol version lacks is rejected with the version that has it."""
    with pytest.raises(ConfigurationError) as caught:
        async with connect(database, slot=slot_name, publication="p", create_slot=True, **asked):
            pass
    assert needed == str(caught.value)
    assert 0 == await client.fetchval(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", slot_name
    )


@pytest.mark.parametrize("route", ["walsender", "sql"])
async def test_the_best_is_chosen(database, slot_name, client, route, version):
    """Without ``proto_version`` the newest version of the server is used, for any publication."""
    await client.execute('CREATE PUBLICATION "a,b ""c"" É\'s" FOR TABLE items')
    source = Source(database, slot=slot_name, publication='a,b "c" É\'s', create_slot=True, interface=route)
    assert str(best_version(version)) == source.options().negotiate(version)["proto_version"]
    await Pipeline(source, [MemorySink()], until="now").run()
    await client.execute("INSERT INTO items VALUES (1)")
    sink = MemorySink()
    await Pipeline(source, [sink], until="now").run()

    lines = [line for batch in sink.batches for line in NativeFormat().events(batch.slices)]
    assert [{"id": 1}] == [json.loads(line)["new"] for line in lines]


@pytest.mark.parametrize("version", [15, 16, 17, 18])
@pytest.mark.parametrize("proto", [1, 2, 3])
async def test_a_two_phase_slot_read_without_asking(database, slot_name, client, proto):
    """A two-phase slot sends prepared transactions to every reader; undecided ones survive a restart."""
    source = Source(database, slot=slot_name, publication="p", proto_version=proto)
    await client.fetchval("SELECT pg_create_logical_replication_slot($1, 'pgoutput', false, true)", slot_name)
    gid = slot_name[-50:]
    for statement in ("BEGIN", "INSERT INTO items VALUES (1)", f"PREPARE TRANSACTION '{gid}'"):
        await client.execute(statement)
    before = MemorySink()
    await Pipeline(source, [before], until="now").run()
    await client.execute(f"COMMIT PREPARED '{gid}'")
    after = MemorySink()
    await Pipeline(source, [after], until="now").run()

    assert ([], [1]) == tuple([change.new["id"] for change in sink.changes] for sink in (before, after))
