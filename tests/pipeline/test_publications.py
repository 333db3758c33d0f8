"""Changes of publications: policies and texts as tables of cases, and the file of the watch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest

from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.lsn import LSN
from aiorepl.pipeline.publication_policy import LEFT, PublicationPolicy
from aiorepl.pipeline.publication_state import PublicationState
from aiorepl.pipeline.publication_texts import text_of
from aiorepl.source.publication.picture import Picture, picture
from aiorepl.storage.checked_json import seal
from aiorepl.transactions.publication_changes import Difference, PublicationChange, What

EVERY = get_args(What)
FACTS = json.dumps({"publications": [], "listed": [], "schemas": [], "tables": []})


def difference(what: What, root: int = 0) -> Difference:
    """A difference of table 7, which may be a partition of table ``root``."""
    return Difference(what, 7, "public", "t", root, "public" if root else "", "r" if root else "")


POLICIES = [
    # on_new_table, on_partition_change, root; the differences because of which tables are read
    ("warn", "warn", 1, ()),
    ("ignore", "warn", 1, ()),
    ("snapshot", "warn", 1, ("table_added",)),
    ("snapshot", "resnapshot", 0, ("table_added", "partition_attached")),
    ("ignore", "resnapshot", 0, ("partition_attached",)),
    ("warn", "resnapshot", 1, ("partition_attached", *LEFT)),
]


@pytest.mark.parametrize(("new_table", "partition_change", "root", "acts"), POLICIES)
def test_tables_that_are_read(new_table, partition_change, root, acts):
    """A policy acts on the differences that it names, and on rows that left a partitioned table."""
    policy = PublicationPolicy.of("1 s", new_table, partition_change)
    assert 1.0 == policy.interval
    assert set(acts) == {what for what in EVERY if policy.acts(difference(what, root))}
    assert policy.reads == (new_table == "snapshot" or partition_change == "resnapshot")


@pytest.mark.parametrize(
    ("new_table", "partition_change", "option"),
    [
        ("snapshot", "warn", "on_new_table"),
        ("ignore", "warn", "on_new_table"),
        ("warn", "resnapshot", "on_partition_change"),
    ],
)
def test_a_policy_without_looks(new_table, partition_change, option):
    """Without looks at the catalog, the policies must be the defaults."""
    assert PublicationPolicy.of(None, "warn", "warn").interval is None
    with pytest.raises(ConfigurationError, match=f"{option} needs publication_interval"):
        PublicationPolicy.of(None, new_table, partition_change)


@pytest.mark.parametrize("what", EVERY)
def test_the_text_of_a_change(what):
    """Each kind has a text that names the object; a commit is named only if it is known."""
    change = PublicationChange(difference(what), LSN(16), 0)
    text = text_of(change)
    assert str(change.difference) in text
    assert "commit LSN" not in text
    assert f"{text} (commit LSN 0/10)" == text_of(
        PublicationChange(change.difference, LSN(16), 0, exact=True)
    )


def test_the_text_of_an_uncertain_change():
    """A partition that was truncated or rewritten is not called truncated."""
    certain = difference("partition_truncated", 1)
    texts = [
        text_of(PublicationChange(each, LSN(16), 0)) for each in (certain, replace(certain, certain=False))
    ]
    assert [False, True] == ["has another file" in text for text in texts]


def look(number: int, **fields: object) -> Picture:
    """A picture of the catalog."""
    return replace(picture(FACTS, number, LSN(number), float(number)), **fields)


async def test_the_file(tmp_path):
    """A restart loads the picture, the changes that sinks have not received, and the moves, with all fields."""
    found = Difference("partition_attached", 7, "public", "t", 1, "odd", "r", certain=False, identified=True)
    pending = {"s": [PublicationChange(found, LSN(20), 3, exact=True)], "none": []}
    state = PublicationState(tmp_path, "slot")
    await state.load("7/db", ["q", "p"], fresh=False)
    assert (True, None, {}, ()) == (state.loaded, state.picture, state.pending, await state.recall())
    state.moves = (LSN(30), LSN(40))
    await state.write(look(5, oldest=6), pending)
    assert (look(5, oldest=6), pending) == (state.picture, state.pending)

    later = PublicationState(tmp_path, "slot")
    assert (LSN(30), LSN(40)) == await later.recall()
    assert not later.loaded
    await later.load("7/db", ["p", "q"], fresh=False)
    assert (look(5, oldest=6), (LSN(30), LSN(40))) == (later.picture, later.moves)
    assert {"s"} == later.pending.keys()
    (kept,) = later.pending["s"]
    assert (found, LSN(20), 3, True) == (kept.difference, kept.lsn, kept.ordinal, kept.exact)


@pytest.mark.parametrize(
    ("source", "publications", "fresh"),
    [("8/db", ["p"], False), ("7/db", ["p", "q"], False), ("7/db", ["p"], True)],
)
async def test_a_picture_of_something_else(tmp_path, source, publications, fresh):
    """The picture of another database, of other publications, or from before the slot has no meaning."""
    state = PublicationState(tmp_path, "slot")
    await state.load("7/db", ["p"], fresh=False)
    await state.write(look(5), {})
    later = PublicationState(tmp_path, "slot")
    await later.load(source, publications, fresh=fresh)
    assert (True, None, {}) == (later.loaded, later.picture, later.pending)


async def test_a_damaged_file(tmp_path):
    """A damaged file is reported once, and the next write replaces it. Until then it has no moves."""
    (tmp_path / "slot.publication.json").write_text("{}")
    state = PublicationState(tmp_path, "slot")
    assert () == await state.recall()
    with pytest.raises(
        JournalError, match=r"slot\.publication\.json.* It is replaced, and changes of the publication"
    ):
        await state.load("7/db", ["p"], fresh=False)
    assert state.loaded
    await state.write(look(5), {})
    later = PublicationState(tmp_path, "slot")
    await later.load("7/db", ["p"], fresh=False)
    assert look(5) == later.picture


async def test_an_unknown_kind_of_change(tmp_path):
    """A file of a later release with another kind of change counts as damaged."""
    state = PublicationState(tmp_path, "slot")
    await state.load("7/db", ["p"], fresh=False)
    await state.write(look(5), {"s": [PublicationChange(difference("table_added"), LSN(20), 0)]})
    file = tmp_path / "slot.publication.json"
    fields = json.loads(file.read_bytes().splitlines()[0])
    fields["pending"]["s"][0]["what"] = "table_painted"
    file.write_bytes(seal(fields))
    with pytest.raises(JournalError, match="kind of a change is unknown"):
        await PublicationState(tmp_path, "slot").load("7/db", ["p"], fresh=False)


async def test_a_file_that_cannot_be_read(tmp_path):
    """The file is read again by the next ``load``."""
    (tmp_path / "slot.publication.json").mkdir()
    state = PublicationState(tmp_path, "slot")
    with pytest.raises(JournalError):
        await state.load("7/db", ["p"], fresh=False)
    assert not state.loaded


async def test_without_a_folder():
    """Without a folder the state lives as long as the process."""
    state = PublicationState(None, "slot")
    assert () == await state.recall()
    await state.load("7/db", ["p"], fresh=False)
    assert state.loaded
    await state.write(look(5), {})
    assert look(5) == state.picture
