"""A file with one owner: what is written is read again, and a process that was paused does not overwrite its successor."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from aiorepl.errors import DamagedJournal, PermanentError, TransientError
from aiorepl.storage.checked_json import integer, seal, unseal
from aiorepl.storage.document import Document, replace_for_slot
from aiorepl.storage.local import LocalStore
from aiorepl.storage.store import Superseded


def dump(number: int) -> bytes:
    return seal({"number": number})


def load(data: bytes, location: str) -> int:
    return unseal(data, location, lambda fields: integer(fields, "number"))


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path)


def document(store) -> Document[int]:
    return Document(store, "number.json", dump, load)


def test_what_was_written_is_read(store):
    written = document(store)
    assert written.load() is None
    assert not written.exists
    for number in (1, 2):
        written.replace(number)
        assert document(store).load() == number
    assert written.exists
    written.delete()
    assert not written.exists
    assert document(store).load() is None


def test_a_process_that_was_paused_does_not_overwrite_its_successor(store):
    paused, other = document(store), document(store)
    paused.replace(1)
    assert other.load() == 1
    other.replace(2)
    with pytest.raises(Superseded):
        paused.replace(3)
    with pytest.raises(Superseded):
        document(store).replace(4)  # it has not read that there is a file
    assert document(store).load() == 2


def test_a_damaged_file_is_refused_and_then_replaced(store, tmp_path):
    file = tmp_path / "number.json"
    document(store).replace(1)
    file.write_bytes(file.read_bytes().replace(b"1", b"7", 1))
    found = document(store)
    with pytest.raises(DamagedJournal, match=r"number\.json in .* is damaged"):
        found.load()
    assert found.exists
    found.replace(2)
    assert document(store).load() == 2


class Refusing:
    """A store whose writes fail with an error."""

    def __init__(self, error: Exception) -> None:
        self.url, self._error = "memory:", error

    def replace(self, *_: Any) -> str:
        raise self._error


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (Superseded("number.json"), PermanentError, "stop the other pipeline with this slot"),
        (
            OSError(28, "No space left on device"),
            TransientError,
            "cannot write number.json in memory:: No space",
        ),
        (
            OSError(30, "Read-only file system"),
            PermanentError,
            "cannot write number.json in memory:: Read-only",
        ),
    ],
    ids=["superseded", "full", "read-only"],
)
async def test_errors_for_a_pipeline(error, raised, message):
    with pytest.raises(raised, match=message):
        await replace_for_slot(Document(Refusing(error), "number.json", dump, load), 1)


async def test_the_write_is_made_in_a_thread(store):
    """The event loop goes on while the store writes."""
    began, go_on = asyncio.Event(), threading.Event()
    loop, replace = asyncio.get_running_loop(), store.replace

    def slow(*arguments: Any) -> str:
        loop.call_soon_threadsafe(began.set)
        assert go_on.wait(30)
        return replace(*arguments)

    store.replace = slow
    writing = asyncio.create_task(replace_for_slot(document(store), 1))
    await began.wait()
    go_on.set()
    await writing
    assert document(store).load() == 1
