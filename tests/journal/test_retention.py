"""Retention keeps what consumers need, and of the rest as much as was configured."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from aiorepl import ConfigurationError
from aiorepl.journal import Cursors, JournalReader, Retention, prune
from aiorepl.journal.consumers import stalled_cursors
from aiorepl.journal.retention import keep_pruned
from aiorepl.sizes import format_size
from aiorepl.storage.local import LocalStore

NOW = 2_000_000_000.0


@pytest.fixture
def hours(monkeypatch):
    """Each segment is published an hour after the one before."""
    seconds = itertools.count(NOW - 5 * 3600, 3600)
    with monkeypatch.context() as patch:
        patch.setattr("aiorepl.journal.writer.time", SimpleNamespace(time=lambda: next(seconds)))
        yield


@pytest.fixture
def journal(hours, journal, monkeypatch):
    """A journal of five segments of one size, an hour apart; the last is an hour old. A consumer has passed four."""
    folder, stream = journal
    monkeypatch.setattr("aiorepl.journal.retention.time.time", lambda: NOW)
    Cursors(folder).advance("all", stream.position.at(stream.ends[3]))
    return journal


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (None, 1),
        (Retention(max_age_seconds=0), 1),
        (Retention(max_age_seconds=2.5 * 3600), 2),
        (Retention(max_age_seconds=86_400), 5),
        (Retention(max_bytes=0), 1),
        (Retention(max_age_seconds=86_400, max_bytes=0), 1),
        (Retention(max_age_seconds=4.5 * 3600, max_bytes=1 << 20), 4),
    ],
)
async def test_what_is_left(journal, retention, left) -> None:
    """Segments that exceed a limit are deleted, the oldest first; the newest segment stays."""
    folder, _ = journal
    before = JournalReader(folder).segments()
    gone = prune(folder, retention=retention)
    assert [segment.name for segment in before[: 5 - left]] == gone
    assert before[5 - left :] == JournalReader(folder).segments()


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
async def test_bytes(journal, kept) -> None:
    """The newest segments that fit stay."""
    folder, _ = journal
    sizes = [path.stat().st_size for path in sorted(folder.glob("segments/*.segment"))]
    prune(folder, retention=Retention(max_bytes=sum(sizes[-kept:])))
    assert kept == len(JournalReader(folder).segments())
    assert [] == prune(folder, retention=Retention(max_bytes=sum(sizes[-kept:])))


@pytest.mark.parametrize("retention", [Retention(max_age_seconds=0), Retention(max_bytes=0)])
async def test_what_a_consumer_needs(journal, retention) -> None:
    """Segments that a consumer needs stay, however old and large; without consumers all stay."""
    folder, stream = journal
    Cursors(folder).advance("slow", stream.position.at(stream.ends[0]))
    prune(folder, retention=retention)
    assert 4 == len(JournalReader(folder).segments())
    Cursors(folder).remove("slow")
    Cursors(folder).remove("all")
    assert [] == prune(folder, retention=retention)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7d", Retention(max_age_seconds=604_800)),
        ("90min", Retention(max_age_seconds=5400)),
        ("100gb", Retention(max_bytes=100 * 10**9)),
        ("1d, 5MB", Retention(max_age_seconds=86_400, max_bytes=5_000_000)),
        ("1.5d 2TiB", Retention(max_age_seconds=129_600, max_bytes=2 << 40)),
        ("30m", Retention(max_age_seconds=1800)),
        ("0s", Retention(max_age_seconds=0)),
    ],
)
def test_as_text(text, expected) -> None:
    """A retention in a file has a unit."""
    assert expected == Retention.parse(text)


@pytest.mark.parametrize("text", ["", "7", "1d 2h", "1MB 2MB", "5g", "-1d", "for ever", "1.5"])
def test_other_text(text) -> None:
    """Other text is rejected, as are numbers without units, which could be an age or a size."""
    with pytest.raises(ConfigurationError, match="retention"):
        Retention.parse(text)


async def test_a_cursor_that_is_left_behind(journal, monkeypatch, caplog) -> None:
    """The log says once which cursor keeps how much, if it has not moved for a day."""
    folder, stream = journal
    cursors = Cursors(folder)
    cursors.advance("lost", stream.position.at(stream.ends[0]))
    cursors.advance("all", stream.position.at(stream.ends[-1]))
    size = sum(segment.size for segment in JournalReader(folder).segments(stream.ends[0]))
    assert {} == stalled_cursors(LocalStore(folder))
    monkeypatch.setattr("time.time", lambda: NOW + 90_000)
    asked = asyncio.Event()

    async def sleep(seconds: float) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("aiorepl.journal.retention.asyncio.sleep", sleep)
    pruning = asyncio.create_task(keep_pruned(folder, Retention(max_age_seconds=1e9)))
    await asked.wait()
    pruning.cancel()
    (record,) = [each for each in caplog.records if "cursor" in each.getMessage()]
    expected = f"cursor 'lost' of the journal {folder} keeps {format_size(size)}, and has not moved for 1 d (last by host "
    assert record.getMessage().startswith(expected)
    assert record.getMessage().endswith(f"drop the cursor (aiorepl journal drop {folder} 'lost')")
