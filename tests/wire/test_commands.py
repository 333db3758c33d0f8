"""The replication commands as text: names that mean themselves, and the grammar of each server."""

from __future__ import annotations

import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN
from aiorepl.pgoutput.options import Options
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
    """A name means exactly itself, whatever is in it."""
    assert quoted == commands.identifier(name)


@pytest.mark.parametrize(
    ("text", "quoted"), [("on", "'on'"), ("it's", "'it''s'"), ("a\\'b", "'a\\''b'"), ("", "''")]
)
def test_literal(text, quoted):
    """The replication grammar knows no escape but the doubled quote."""
    assert quoted == commands.literal(text)


@pytest.mark.parametrize("quote", [commands.identifier, commands.literal])
def test_nul(quote):
    """A NUL byte would end the command in its midst."""
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
    """Up to PostgreSQL 14 the options are words behind the plugin."""
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
    """From PostgreSQL 15 on they stand in parentheses."""
    assert expected == commands.create_slot("s", server=server, **options)


@pytest.mark.parametrize("server", [17, 18])
def test_failover(server):
    """A failover slot, from PostgreSQL 17 on."""
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
    """What the server would refuse is refused before it is asked, with the version that can."""
    with pytest.raises(ConfigurationError, match=expected):
        commands.create_slot("s", server=server, **options)


@pytest.mark.parametrize(("name", "quoted"), NAMES)
def test_drop_slot(name, quoted):
    """DROP_REPLICATION_SLOT, at once or when nobody uses it."""
    assert f"DROP_REPLICATION_SLOT {quoted}" == commands.drop_slot(name)
    assert f"DROP_REPLICATION_SLOT {quoted} WAIT" == commands.drop_slot(name, wait=True)


def test_start_replication():
    """Options keep their order; a publication's name goes through both quotings."""
    options = Options(("it's", 'say "hi"'), binary=True).negotiate(16)

    command = commands.start_replication("s", LSN(0x16_0000_00FF), options)

    assert (
        'START_REPLICATION SLOT "s" LOGICAL 16/FF ("proto_version" \'4\', '
        '"publication_names" \'"it\'\'s","say ""hi"""\', "binary" \'true\')'
    ) == command
