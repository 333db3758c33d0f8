"""Folders: how they are spelled, and what makes names outlive a power cut."""

from __future__ import annotations

import os

import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.journal import JournalReader
from aiorepl.storage.local import LocalStore
from aiorepl.storage.opening import open_store
from aiorepl.storage.store import Superseded


@pytest.fixture
def synced(monkeypatch):
    """The inodes of what was fsynced."""
    inodes, fsync = set(), os.fsync

    def noted(descriptor):
        inodes.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return inodes


@pytest.mark.parametrize("call", [LocalStore.lock, lambda store: store.write("cursors/a.json", b"{}")])
def test_folders_that_are_made_are_fsynced(tmp_path, synced, call):
    """Each in the one that it stands in, up to one that was there."""
    store = LocalStore(tmp_path / "a" / "b")
    call(store)
    store.unlock()
    made = [folder for folder in (store.path, *store.path.parents) if folder.is_relative_to(tmp_path)]
    assert made == [store.path, tmp_path / "a", tmp_path]
    assert {folder.stat().st_ino for folder in made[1:]} <= synced


def test_a_folder_that_was_there(tmp_path, synced):
    """An existing folder is not fsynced again."""
    store = LocalStore(tmp_path)
    store.lock()
    store.unlock()
    assert set() == synced


@pytest.mark.parametrize(
    ("url", "config", "says"),
    [
        ("http://bucket/journal", None, "in a folder or an object store: http:// is neither"),
        ("file://elsewhere/journal", None, "elsewhere is not localhost"),
        ("journal", {"region": "x"}, "config is for the URLs of object stores"),
        ("s3://key:secret@bucket/journal", None, "contains credentials"),
        ("s3://bucket/journal#secret", None, "contains credentials, a query or a fragment"),
        ("s3:/key:secret@bucket", None, "scheme 's3' is not that of an object store"),
        ("file://key:secret@elsewhere/journal", None, "elsewhere is not localhost"),
        ("minio://key:secret@host/x", {"region": "x"}, "config is for the URLs of object stores"),
        (
            "s3://bucket/journal",
            {"no_such_thing": "secret"},
            "does not support for s3://: one of no_such_thing",
        ),
    ],
)
def test_mistakes(url: str, config: dict[str, str] | None, says: str) -> None:
    """A wrong URL or configuration is refused, without showing its values."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        open_store(url, config)
    assert "secret" not in str(refused.value)


def test_urls_of_one_folder(tmp_path) -> None:
    """Different spellings of a folder are the same journal."""
    assert JournalReader(f"file://{tmp_path}/a%20b").url == JournalReader(tmp_path / "x" / ".." / "a b").url


def test_compare_and_swap(tmp_path) -> None:
    """A file is replaced only in the version that is named; one that has the new contents already is a success."""
    store = LocalStore(tmp_path / "journal")
    with pytest.raises(Superseded):
        store.replace("a", b"1", "version")
    first = store.replace("a", b"1", None)
    assert first == store.replace("a", b"1", None)
    assert (b"1", first) == store.load("a")
    second = store.replace("a", b"2", first)
    for version in (None, first):
        with pytest.raises(Superseded):
            store.replace("a", b"3", version)
    assert second == store.replace("a", b"2", first)
    assert (b"2", second) == store.load("a")
    store.delete("a")
    with pytest.raises(Superseded):
        store.replace("a", b"3", second)
    assert ["replace.lock"] == store.names()
