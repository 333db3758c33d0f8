"""Selections while tables change: no hidden column becomes visible under another name, and no selected row is missing."""

from __future__ import annotations

import dataclasses

import pytest

from aiorepl import PermanentError, Selection
from aiorepl.source.catalog.tables import CatalogTable, TableCatalog
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl.transforms.filter import StreamFilter

ID, EMAIL, NOTE, MAIL, PHONE = column("id", 23, key=True), *map(column, ("email", "note", "mail", "phone"))
PLAIN = "plain text"


def masking(*mask: str, **more) -> Selection:
    return Selection(mask=mask or ("public.t.email",), secret="s", **more)


def described(
    stream_filter: StreamFilter, *columns: list, names: tuple[str, ...] = ("t", "t"), same: bool = True
) -> list:
    """Return what a sink gets of one row under each description of a table."""
    stream, table = Stream(), None
    for name, each in zip(names, columns, strict=True):
        table = stream.table(name, *each, replaces=table if same else None)
        stream.transaction(table.insert("1", *[f"{PLAIN} {one.name}" for one in each[1:]]))
    return [change for part in stream.slices() for change in stream_filter.apply(part).changes]


@pytest.mark.parametrize(
    ("selection", "before", "after", "names", "says"),
    [
        (masking(), [ID, EMAIL], [ID, MAIL], ("t", "t"), "public.t.mail is new and may be public.t.email"),
        (
            Selection(drop=("*.*.email",)),
            [ID, EMAIL],
            [ID, MAIL],
            ("t", "t"),
            "public.t.mail is new and may be public.t.email",
        ),
        # Renamed while others come and go, and with another type.
        (masking(), [ID, NOTE, EMAIL], [ID, MAIL, PHONE], ("t", "t"), "may be public.t.email"),
        (masking(), [ID, EMAIL], [ID, column("mail", 1043)], ("t", "t"), "may be public.t.email"),
        # Two columns that changed their names.
        (masking(), [ID, EMAIL, NOTE], [ID, NOTE, EMAIL], ("t", "t"), "public.t.note is new and may be"),
        (masking(), [ID, EMAIL], [ID, EMAIL], ("t", "u"), "public.t.email, .* was renamed to public.u.email"),
        (
            Selection(tables=("public.t",)),
            [ID],
            [ID],
            ("t", "u"),
            "table public.t was renamed to public.u, which the selection excludes",
        ),
        (
            Selection(tables=("!public.t",)),
            [ID],
            [ID],
            ("t", "u"),
            "table public.t was renamed to public.u, which the selection includes",
        ),
    ],
    ids=["mask", "drop", "others", "type", "swap", "table", "selected", "excluded"],
)
def test_another_name_stops_the_sink(selection, before, after, names, says):
    """A rename that a pattern depends on stops the sink on every iteration; the error contains no row data."""
    stream_filter = StreamFilter(selection, "s")
    for _ in range(2):
        with pytest.raises(PermanentError, match=rf"sink s: .*{says}") as stopped:
            described(stream_filter, before, after, names=names)
        assert stopped.value.fatal
        assert PLAIN not in str(stopped.value)


@pytest.mark.parametrize(
    ("selection", "before", "after", "names", "seen"),
    [
        # What the error says to write: the new name to be masked, or to be kept.
        (masking("public.t.email?", "public.t.mail"), [ID, EMAIL], [ID, MAIL], ("t", "t"), [set(), set()]),
        (
            masking("public.t.email?", keep=("public.t.mail",)),
            [ID, EMAIL],
            [ID, MAIL],
            ("t", "t"),
            [set(), {"mail"}],
        ),
        (masking("public.t.email?", "public.u.email"), [ID, EMAIL], [ID, EMAIL], ("t", "u"), [set(), set()]),
        (
            masking("*.*.email", keep=("public.u.email",)),
            [ID, EMAIL],
            [ID, EMAIL],
            ("t", "u"),
            [set(), {"email"}],
        ),
        (Selection(tables=("public.t?", "public.u")), [ID, NOTE], [ID, NOTE], ("t", "u"), [{"note"}] * 2),
        (Selection(tables=("public.t", "!public.u")), [ID, NOTE], [ID, NOTE], ("t", "u"), [{"note"}]),
        (Selection(tables=("*.*", "!public.t", "public.u")), [ID, NOTE], [ID, NOTE], ("t", "u"), [{"note"}]),
        # What puts nothing in doubt.
        (masking(), [ID, EMAIL], [ID, EMAIL, NOTE], ("t", "t"), [set(), {"note"}]),
        (masking(), [ID, EMAIL, NOTE], [ID, NOTE], ("t", "t"), [{"note"}] * 2),
        (masking(), [ID, NOTE, EMAIL], [ID, EMAIL, PHONE], ("t", "t"), [{"note"}, {"phone"}]),
        (masking(), [ID, NOTE], [ID, MAIL], ("t", "t"), [{"note"}, {"mail"}]),
        (masking("*.*.email"), [ID, EMAIL], [ID, EMAIL], ("t", "u"), [set(), set()]),
    ],
)
def test_what_is_settled_goes_on(selection, before, after, names, seen):
    """Patterns for both names resolve a rename, and changes of visible columns need none."""
    for _ in range(2):
        changes = described(StreamFilter(selection), before, after, names=names)
        assert seen == [
            {name for name, value in change.new.items() if str(value).startswith(PLAIN)} for change in changes
        ]


def test_what_was_accepted_is_walked_again():
    """Spooled changes may be iterated over more than once."""
    stream_filter = StreamFilter(masking())
    for _ in range(2):
        assert 2 == len(described(stream_filter, [ID, NOTE], [ID, EMAIL]))


@pytest.mark.parametrize("same", [True, False], ids=["altered", "made anew"])
@pytest.mark.parametrize("renamed", ["before", "behind"])
def test_names_as_the_catalog_has_them(same, renamed):
    """A rename before the first row is detected with the catalog, also when rows from before it arrive late."""
    now, then = ([ID, EMAIL], [ID, MAIL]) if renamed == "before" else ([ID, MAIL], [ID, EMAIL])
    selection = masking("public.t.email") if renamed == "before" else masking("public.t.mail")
    oid = 16385 if same else 5
    catalog = TableCatalog([CatalogTable(oid, "public", "t", tuple(one.name for one in now))])
    with pytest.raises(PermanentError, match="is new and may be"):
        described(StreamFilter(selection, "s", catalog), then, names=("t",))


def test_a_column_that_was_away_for_a_while():
    """A hidden column that has disappeared may return under another name later; columns that existed beside it are others."""
    stages = [ID, EMAIL, NOTE], [ID], [ID, NOTE]
    assert 3 == len(described(StreamFilter(masking()), *stages, names=("t",) * 3))
    with pytest.raises(PermanentError, match=r"public\.t\.mail is new and may be public\.t\.email"):
        described(StreamFilter(masking(), "s"), *stages, [ID, NOTE, MAIL], names=("t",) * 4)
    back = [*stages, [ID, EMAIL, NOTE], [ID, EMAIL, NOTE, MAIL]]
    assert 5 == len(described(StreamFilter(masking()), *back, names=("t",) * 5))


PARTITIONED = CatalogTable(1, "public", "t", ("id", "email", "note"), partitioned=True)
MIDDLE = CatalogTable(2, "public", "t_1", ("id", "email", "note"), (1,), partitioned=True)


@pytest.mark.parametrize("parent", [1, 2])
def test_a_partition_is_its_partitioned_table(parent):
    """A partition is selected, excluded and masked by the names of all its ancestors."""
    catalog = TableCatalog([PARTITIONED, MIDDLE, CatalogTable(16385, "public", "leaf", (), (parent,))])

    def seen(selection):
        columns = [ID, column("note"), column("email")]
        return [
            dict(change.new)
            for change in described(StreamFilter(selection, "s", catalog), columns, names=("leaf",))
        ]

    assert [] == seen(Selection(tables=("!public.t",)))
    assert [] == seen(Selection(tables=("public.t", "!public.leaf")))
    assert ["id", "note"] == list(seen(Selection(tables=("public.t",), drop=("public.t.email",)))[0])
    masked = seen(masking("public.t.email"))[0]["email"]
    assert PLAIN not in masked
    assert masked == seen(masking("public.leaf.email"))[0]["email"]
    assert PLAIN in seen(masking("public.t.email", keep=("public.t.email",)))[0]["email"]


def test_a_partition_that_was_dropped():
    """A dropped table that may have been a partition is masked as one, and stops the sink if its selection depends on it."""
    catalog = TableCatalog([PARTITIONED])
    catalog.add([], [16385])
    columns = [[ID, EMAIL, NOTE]]
    (change,) = described(StreamFilter(masking(), "s", catalog), *columns, names=("leaf",))
    assert PLAIN not in change.new["email"]
    assert PLAIN in change.new["note"]
    for selection in (Selection(tables=("public.t",)), Selection(tables=("!public.t",))):
        with pytest.raises(PermanentError, match=r"table public\.leaf was dropped or detached before"):
            described(StreamFilter(selection, "s", catalog), *columns, names=("leaf",))
    settled = Selection(tables=("public.t", "public.leaf?"))
    assert 1 == len(described(StreamFilter(settled, "s", catalog), *columns, names=("leaf",)))
    assert [] == described(
        StreamFilter(Selection(tables=("public.t",)), "s", catalog), [ID, EMAIL], names=("leaf",)
    )


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (masking("public.leaf.email"), r"public\.leaf\.email, .* was renamed to public\.t\.email"),
        (Selection(tables=("public.leaf",)), "table public.leaf was renamed to public.t"),
        (Selection(tables=("!public.leaf",)), "table public.leaf was renamed to public.t"),
        (masking("public.leaf.email", "public.t.email"), None),
        (masking("public.leaf.email", keep=("public.t.email",)), None),
    ],
)
def test_partitions_that_get_the_name_of_their_table(selection, says):
    """When publish_via_partition_root is set later, the partitions' rows arrive under another name."""
    root = dataclasses.replace(PARTITIONED, oid=16385)
    catalog = TableCatalog([root, CatalogTable(5, "public", "leaf", ("id", "email", "note"), (16385,))])
    if says is None:
        assert 1 == len(described(StreamFilter(selection, "s", catalog), [ID, EMAIL, NOTE], names=("t",)))
    else:
        with pytest.raises(PermanentError, match=says):
            described(StreamFilter(selection, "s", catalog), [ID, EMAIL, NOTE], names=("t",))


def test_what_the_catalog_finds_later_applies_at_once():
    """A new ancestor, or a new name of one, applies to rows of the same description; former names still count."""
    leaf = CatalogTable(16385, "public", "leaf", ("id", "email", "note"))
    former = CatalogTable(1, "public", "former", ("id", "email", "note"), partitioned=True)
    catalog = TableCatalog([leaf, former])
    stream = Stream()
    table = stream.table("leaf", ID, EMAIL, NOTE)
    stream.transaction(table.insert("1", f"{PLAIN} email", "note"))
    (part,) = stream.slices()
    stream_filter = StreamFilter(masking(), "s", catalog)

    def visible():
        return [PLAIN in change.new["email"] for change in stream_filter.apply(part).changes]

    assert [True] == visible()
    catalog.add([dataclasses.replace(leaf, parents=(1,))], [16385])
    assert [True] == visible()
    catalog.add([PARTITIONED], [16385])  # the ancestor is now named public.t
    assert [False] == visible()
    catalog.add([former], [16385])
    assert [False] == visible()


def test_a_partition_that_is_detached():
    """A detached partition counts as one until the next start, because earlier rows may still arrive."""
    catalog = TableCatalog([PARTITIONED, CatalogTable(16385, "public", "leaf", (), (1,))])
    catalog.add([CatalogTable(16385, "public", "leaf")], [16385])
    (change,) = described(StreamFilter(masking(), "s", catalog), [ID, EMAIL], names=("leaf",))
    assert PLAIN not in change.new["email"]


@pytest.mark.parametrize(
    ("selection", "mistakes"),
    [
        (masking("public.t.email"), []),
        (masking("public.t.emial"), ["mask: 'public.t.emial' matches no column"]),
        (masking("public.s.email"), ["mask: 'public.s.email' matches no column"]),
        (masking("public.t.emial?"), []),
        (masking("*.*.email", keep=("public.t.nope",)), ["keep: 'public.t.nope' matches no column"]),
        (Selection(drop=("public.T.email",)), ["drop: 'public.T.email' matches no column"]),
        (Selection(tables=("public.t", "!public.leaf")), []),
        (Selection(tables=("!public.leave",)), ["tables: '!public.leave' matches no table"]),
        (Selection(tables=("publik.*", "t.*?")), ["tables: 'publik.*' matches no table"]),
        (Selection(kinds=("insert",)), []),
    ],
)
def test_patterns_that_match_nothing(selection, mistakes):
    """Each pattern that matches nothing is reported with its option, unless it ends with a question mark."""
    leaf = CatalogTable(16385, "public", "leaf", ("id", "email", "note"), (1,))
    found = selection.unmatched(TableCatalog([PARTITIONED, leaf]))
    assert len(mistakes) == len(found)
    assert all(text.startswith(begin) for text, begin in zip(found, mistakes, strict=True))
