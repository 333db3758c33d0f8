"""Publications and tables that are altered while transactions are open."""

from __future__ import annotations

import asyncio

import pytest

from tests.live.altered_publications.program import SETTINGS, Program  # noqa: TID251 - helpers, and no tests
from tests.today import day  # noqa: TID251 - a helper, and no test

# So that the seeds of two days differ.
_PROGRAMS = 10
_TRANSACTIONS = 60

pytestmark = [pytest.mark.server, pytest.mark.by_day, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", [16, 18])
def test_what_was_sent_is_delivered(version, servers):
    """Every change that a walsender has sent is delivered once, as one of the connections was sent it; nothing else is."""
    with servers.new(version, **SETTINGS) as server:
        for seed in range(day() * _PROGRAMS, day() * _PROGRAMS + 2):
            program = Program(server, seed, _TRANSACTIONS)
            found = asyncio.run(program.run())
            assert [] == found, f"again: python -m tests.live.altered_publications.program {version} {seed}"


@pytest.mark.parametrize(("version", "seed"), [(16, 204), (18, 101)])
def test_a_publication_that_is_not_found(version, seed, servers):
    """The server does not find the publication while it decodes a transaction that is in progress; the pipelines go on."""
    with servers.new(version, **SETTINGS) as server:
        program = Program(server, seed, _TRANSACTIONS)

        assert [] == asyncio.run(program.run())
