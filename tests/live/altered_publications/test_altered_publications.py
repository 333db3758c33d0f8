"""Publications and tables are altered while transactions are open."""

from __future__ import annotations

import asyncio

import pytest

from tests.live.altered_publications.program import SETTINGS, Program
from tests.today import day

# The distance between the first seeds of two days.
_STRIDE = 10
_TRANSACTIONS = 60

pytestmark = [pytest.mark.server, pytest.mark.by_day, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", [16, 18])
def test_what_was_sent_is_delivered(version, servers):
    """Every change that a walsender has sent is delivered once, in the version of one connection, and nothing else is delivered."""
    with servers.new(version, **SETTINGS) as server:
        for seed in range(day() * _STRIDE, day() * _STRIDE + 2):
            program = Program(server, seed, _TRANSACTIONS)
            found = asyncio.run(program.run())
            assert [] == found, f"again: python -m tests.live.altered_publications.program {version} {seed}"


@pytest.mark.parametrize(("version", "seed"), [(16, 204), (18, 101)])
def test_a_publication_that_is_not_found(version, seed, servers):
    """The pipelines go on if the server does not find the publication while it decodes a transaction in progress."""
    with servers.new(version, **SETTINGS) as server:
        program = Program(server, seed, _TRANSACTIONS)

        assert [] == asyncio.run(program.run())
