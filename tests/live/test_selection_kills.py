"""A process is killed while it makes durable what a selection hides."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.by_day

PROCESS = Path(__file__).with_name("selection_process.py")
SECRET = "a@b.example"


@pytest.fixture(params=["journal", "state_dir", "journal_selection"])
def run(published, request, tmp_path):
    """``run(step, number)`` returns the exit code and the error of a process."""

    async def run(step: str = "never", number: int = 0) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            PROCESS,
            published.dsn,
            published.slot,
            tmp_path,
            request.param,
            step,
            str(number),
            stderr=asyncio.subprocess.PIPE,
        )
        _, error = await process.communicate()
        assert process.returncode is not None
        return process.returncode, error.decode()

    return run


@pytest.mark.parametrize("step", ["fsync", "rename", "published"])
async def test_a_kill_while_the_memory_is_written(published, run, tmp_path, step):
    """No row comes in the clear, none is lost, and a rename is refused after a kill at the first and at the second write."""

    def delivered() -> str:
        return "".join(file.read_text() for file in sorted((tmp_path / "out").glob("*.jsonl*")))

    await published.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text)", f"INSERT INTO people VALUES (1, '{SECRET}')"
    )
    await published.create_slot()
    # The first memory is written before there is a description.
    assert -signal.SIGKILL == (await run(step, 1))[0]
    await published.execute(f"INSERT INTO people VALUES (2, '{SECRET}')")
    assert (0, "") == await run()
    assert '"id":2' in delivered()

    await published.execute(
        "ALTER TABLE people ADD note text", f"INSERT INTO people VALUES (3, '{SECRET}', 'x')"
    )
    assert -signal.SIGKILL == (await run(step, 1))[0]
    # A sink gets no row of a description that is not durable.
    assert '"note"' not in delivered()
    await published.execute(
        "ALTER TABLE people RENAME email TO mail",
        "ALTER TABLE people ADD email text",
        f"INSERT INTO people (id, mail) VALUES (4, '{SECRET}')",
    )
    for _ in range(2):
        code, error = await run()
        assert 0 != code
        assert "email, which the selection drops or masks, was renamed to public.people.mail" in error
    assert SECRET not in delivered()
