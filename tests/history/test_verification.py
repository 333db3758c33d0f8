"""Verification of a history: what is damaged, missing or too much in it is named, and no row is."""

from __future__ import annotations

import shutil

import pytest

from aiorepl import history
from aiorepl.history.planning import Limits
from aiorepl.history.verification import problems
from aiorepl.journal import prune
from aiorepl.storage.local import LocalStore
from aiorepl.testing.messages import column

ROWS = 200


@pytest.fixture
def compacted(journal):
    """A history with a published file and a pending one."""
    table = journal.stream.table("t", column("id", 23, key=True), column("note", 25))
    for limits in (Limits(least_bytes=0), Limits()):
        rows = [table.insert(str(row), f"secret {row * 7919}") for row in range(ROWS - 2)]
        # An update of the key is two rows with one position.
        journal.stream.transaction(*rows, table.update("7", "secret", key=["6", None]))
        journal.write()
        journal.compact(limits=limits)
    assert [True, False] == [file.published for file in journal.files()]
    return journal


def found(journal) -> list[str]:
    texts = [str(error) for error in problems(LocalStore(journal.folder))]
    assert "secret" not in "".join(texts)
    return texts


def test_a_whole_history(compacted) -> None:
    """Nothing is reported of what compaction writes, nor of a journal without a history; a lost ``history.json`` is."""
    assert [] == found(compacted)
    (compacted.folder / "history" / "history.json").unlink()
    (text,) = found(compacted)
    assert "history.json in " in text
    shutil.rmtree(compacted.folder / "history")
    assert [] == found(compacted)


def test_a_flipped_bit(compacted) -> None:
    """A changed page or footer of a Parquet file is found, and the file named."""
    for file in compacted.files():
        path = compacted.folder / "history" / file.path
        whole = path.read_bytes()
        for place in range(4, len(whole) - 8, len(whole) // 40):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            texts = found(compacted)
            assert file.path in texts[0]
        path.write_bytes(whole[:-1])
        assert file.path in found(compacted)[0]
        path.unlink()
        (missing,) = found(compacted)
        assert f"{file.path} in " in missing
        assert "Put back a copy" in missing
        path.write_bytes(whole)


def test_a_file_that_no_list_has(compacted) -> None:
    """Engines read every file of a folder, so one that is in no list is reported; a file of another table is not a copy."""
    (file, other) = compacted.files()
    folder = compacted.folder / "history"
    added = (folder / file.path).with_name("copy.parquet")
    added.write_bytes((folder / file.path).read_bytes())
    (text,) = found(compacted)
    assert "copy.parquet" in text
    assert text.endswith("Delete it")
    added.unlink()
    (folder / file.path).write_bytes((folder / other.path).read_bytes())
    assert file.path in found(compacted)[0]


@pytest.mark.parametrize("name", ["history.json", "list"])
def test_damaged_lists(compacted, name) -> None:
    """A damaged list is named, with what to do."""
    folder = compacted.folder / "history"
    (path,) = folder.glob("history.json") if name == "history.json" else [max(folder.glob("_tables/*"))]
    path.write_bytes(path.read_bytes()[:-3])
    (text,) = found(compacted)
    assert path.name in text
    assert "compact the journal again" in text


def test_what_the_files_lack(journal) -> None:
    """The files of a table say why they do not have all of its rows, also once the journal was pruned."""
    table = journal.stream.table("t", column("id", 23, key=True))
    for number in range(2):
        journal.stream.transaction(table.insert(str(number)))
        journal.write()
    journal.compact()
    assert prune(journal.folder)
    found = history.files(journal.folder, "public", "t")
    assert 2 == found.rows
    assert f"it has been in the stream since {found.start}, without a snapshot" == found.incomplete
