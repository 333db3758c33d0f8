"""A short round of random catalogs; ``catalogs.py`` runs longer as a program."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROGRAM = runpy.run_path(str(Path(__file__).with_name("catalogs.py")))


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_random_catalog(server, database, seed):
    """Both forms of random values of random types read as the server prints them, also after the types were altered."""
    done, different = await PROGRAM["play"](database, seed, version=server.version, turns=2, rows=6)

    assert [] == different
    assert done["values"] > 0
