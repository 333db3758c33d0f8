"""The demo: what it refuses, and what of the environment is not for it."""

from __future__ import annotations

import fcntl

import pytest

DEMO = ("demo", "--no-spark", "--seconds", "1", "--path")


@pytest.mark.server
async def test_with_tls_in_the_environment(run, tmp_path):
    """The demo's own server has no TLS, whatever the environment asks of other servers. A later demo empties its folder."""
    for _ in range(2):
        done = await run(*DEMO, str(tmp_path / "demo"), PGSSLMODE="require", PGTARGETSESSIONATTRS="standby")
        assert (0, True) == (done.code, "Equal." in done.out), done.err


async def test_another_demo_in_its_folder(refused, tmp_path):
    """The folder of a demo that runs is left as it is."""
    (tmp_path / "journal").mkdir()
    with (tmp_path / ".aiorepl-demo").open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        await refused(2, "another demo uses", *DEMO, str(tmp_path))
    assert (tmp_path / "journal").exists()


async def test_a_folder_of_something_else(refused, tmp_path):
    """It is not emptied."""
    (tmp_path / "mine").mkdir()
    await refused(2, "is not a folder of an earlier demo", *DEMO, str(tmp_path))
    assert (tmp_path / "mine").exists()
