"""When the creation of a slot is cancelled, the server's answer decides what is dropped."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from aiorepl import LSN
from aiorepl.errors import ServerError, SlotError
from aiorepl.wire.interface import CreatedSlot
from aiorepl.wire.slot_creation import cancellable_create

MADE = CreatedSlot("s", LSN(1), None)


class Server:
    """Answers the command when it is cancelled, with the slot or an error."""

    def __init__(self, answer, *, there):
        self.slots = {"s"} if there else set()
        self._answer = answer
        self._answered = asyncio.get_running_loop().create_future()

    async def create(self):
        await self._answered
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def cancel(self):
        self._answered.set_result(None)

    def watch(self, heard, fail):
        return contextlib.nullcontext()

    def fail(self, error):
        raise error

    async def drop(self):
        if not self.slots:
            raise SlotError("does not exist")
        self.slots.clear()


@pytest.mark.parametrize(
    ("answer", "there", "left"),
    [
        pytest.param(MADE, True, set(), id="completed"),
        pytest.param(ServerError({"C": "57014"}), False, set(), id="cancelled"),
        pytest.param(ServerError({"C": "57014"}), True, set(), id="cancelled-when-completed"),
        pytest.param(ServerError({"C": "42710"}), True, {"s"}, id="somebody-elses"),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
async def test_cancelled(answer, there, left, again):
    """A cancelled creation leaves no slot, however often it is cancelled, and drops no other slot."""
    server = Server(answer, there=there)
    creating = asyncio.create_task(
        cancellable_create(
            server.create(), "s", process=server, heard=lambda: 0, fail=server.fail, drop=server.drop
        )
    )
    await asyncio.sleep(0)
    while not creating.done():
        if again or not creating.cancelling():
            creating.cancel()
        await asyncio.sleep(0)
    assert creating.cancelled()
    assert left == server.slots
