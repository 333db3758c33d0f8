"""The text of replication commands: quoting, and the grammar of each server version."""

from __future__ import annotations

import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pgoutput.options import PluginOptions
from aiorepl.wire import commands

NAMES = [
    ("orders", '"orders"'),
    ("Orders", '"Orders"'),
    ('say "hi"', '"say ""hi"""'),
    ("it's", '"it\'s"'),
    ("a;DROP_REPLICATION_SLOT b", '"a;DROP_REPLICATION_SLOT b"'),
    ("Größe", '"Größe"'),
]


@pytest.mark.parametrize(("name", "quoted"), NAMES)
def test_identifier(name, quoted):
    """Any name is quoted so that the server reads the same name."""
    assert quoted == commands.identifier(name)


@pytest.mark.parametrize(
    ("text", "quoted"), [("on", "'on'"), ("it's", "'it''s'"), ("a\\'b", "'a\\''b'"), ("", "''")]
)
def test_literal(text, quoted):
    """A quote in a literal is doubled; the replication grammar has no other escape."""
    assert quoted == commands.literal(text)


@pytest.mark.parametrize("quote", [commands.identifier, commands.literal])
def test_nul(quote):
    """A name with a NUL byte is rejected, because it would cut the command."""
    with pytest.raises(ConfigurationError, match="NUL"):
        quote("a\0b")


@pytest.mark.parametrize("server", [10, 11, 12, 13, 14])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 'CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput NOEXPORT_SNAPSHOT'),
        ({"snapshot": "export"}, 'CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput EXPORT_SNAPSHOT'),
        (
            {"snapshot": "use", "temporary": True},
            'CREATE_REPLICATION_SLOT "s" TEMPORARY LOGICAL pgoutput USE_SNAPSHOT',
        ),
    ],
)
def test_create_slot_before_15(server, options, expected):
    """Up to PostgreSQL 14 the options of a slot are words after the plugin."""
    assert expected == commands.create_slot("s", server=server, **options)


@pytest.mark.parametrize("server", [15, 16, 17, 18])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'nothing')"),
        ({"snapshot": "export"}, "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'export')"),
        (
            {"snapshot": "use", "temporary": True, "two_phase": True},
            "CREATE_REPLICATION_SLOT \"s\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'use', TWO_PHASE true)",
        ),
    ],
)
def test_create_slot_from_15(server, options, expected):
    """From PostgreSQL 15 on the options of a slot are in parentheses."""
    assert expected == commands.create_slot("s", server=server, **options)


@pytest.mark.parametrize("server", [17, 18])
def test_failover(server):
    """A failover slot needs PostgreSQL 17."""
    command = commands.create_slot("s", server=server, failover=True)

    assert "CREATE_REPLICATION_SLOT \"s\" LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER true)" == command


@pytest.mark.parametrize(
    ("server", "options", "expected"),
    [
        (14, {"two_phase": True}, "two_phase slot needs PostgreSQL 15 or later; this server is 14"),
        (16, {"failover": True}, "failover slot needs PostgreSQL 17 or later; this server is 16"),
        (17, {"failover": True, "temporary": True}, "failover slot cannot be temporary"),
    ],
)
def test_refusals(server, options, expected):
    """An option that the server does not have is rejected with the version that has it."""
    with pytest.raises(ConfigurationError, match=expected):
        commands.create_slot("s", server=server, **options)


def test_drop_slot():
    """DROP_REPLICATION_SLOT fails for a slot in use, or waits for it."""
    assert 'DROP_REPLICATION_SLOT "orders_1"' == commands.drop_slot("orders_1")
    assert 'DROP_REPLICATION_SLOT "orders_1" WAIT' == commands.drop_slot("orders_1", wait=True)


@pytest.mark.parametrize("name", ["", "a" * 64, "Orders", "a;DROP_REPLICATION_SLOT b", "Größe"])
def test_names_of_slots(name):
    """A command for a name that no slot has is not sent: the server would cut a long one off."""
    for command in (
        lambda: commands.create_slot(name, server=18),
        lambda: commands.alter_slot(name, server=18, failover=True),
        lambda: commands.drop_slot(name),
    ):
        with pytest.raises(ConfigurationError, match="is not a slot name"):
            command()


def test_start_replication():
    """Options keep their order; the name of a publication is quoted as an identifier and as a literal."""
    options = PluginOptions(("it's", 'say "hi"'), binary=True).negotiate(16)

    command = commands.start_replication("s", LSN(0x16_0000_00FF), options)

    assert (
        'START_REPLICATION SLOT "s" LOGICAL 16/FF ("proto_version" \'4\', '
        '"publication_names" \'"it\'\'s","say ""hi"""\', "binary" \'true\')'
    ) == command
