"""Pictures of publications, and the differences between two of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aiorepl.lsn import LSN
from aiorepl.source.catalog.snapshots import Snapshot
from aiorepl.source.publication.commits import commit_of
from aiorepl.source.publication.differences import Details, differences, examined
from aiorepl.source.publication.picture import Picture, picture
from aiorepl.transactions.publication_changes import Difference

OPERATIONS = (True, True, True, True)
ROOT, LEFT, RIGHT, PLAIN = 20001, 20002, 20003, 20004


class Catalog:
    """A catalog with a partitioned table, its partitions, and a plain table."""

    def __init__(self, *, via_root: bool = True, all_tables: bool = False) -> None:
        self.publications = {"p": [1, "p", all_tables, *OPERATIONS, via_root, None]}
        self.listed: dict[tuple[str, int], list[object]] = {}
        self.schemas: list[tuple[str, int]] = []
        self.tables: dict[int, dict[str, object]] = {}
        self.table(ROOT, "root", partitioned=True)
        self.table(LEFT, "left", parent=ROOT)
        self.table(RIGHT, "right", parent=ROOT)
        self.table(PLAIN, "plain")
        if not all_tables:
            self.publish(ROOT)
            self.publish(PLAIN)

    def table(self, oid: int, name: str, **fields: object) -> None:
        known = {"namespace": 2200, "schema": "public", "name": name, "partitioned": False, "parent": None}
        known |= {"file": oid, "toast": oid + 100, "tablespace": 0, "method": 2, "identity": 1}
        self.tables[oid] = known | fields

    def publish(self, oid: int, publication: str = "p", **lists: str | bool | None) -> None:
        found = lists.get("columns"), lists.get("filter")
        self.listed[publication, oid] = [publication, oid, lists.get("excepted", False), *found]

    def look(self, time: float = 0.0) -> Picture:
        facts = {
            "publications": list(self.publications.values()),
            "listed": list(self.listed.values()),
            "schemas": self.schemas,
            "tables": [[oid, *fields.values()] for oid, fields in self.tables.items()],
        }
        text = json.dumps(facts)
        return picture(text, hash(text), LSN(1), time)


def detail(**fields: object) -> Details:
    return replace(Details(0, -1.0, 700, False, False, (), (), (), None, None, None), **fields)


def found(before: Picture, now: Picture, version: int = 18, seen=frozenset(), **details: Details):
    """The differences as kinds and names, with ``?`` if they are uncertain."""
    tables = now.tables
    known = {oid: details.get(tables[oid].name, detail()) for oid in examined(before, now) if oid in tables}
    # A table that is not published any more may exist.
    known |= {oid: detail() for oid in details.get("existing", ())}
    return [
        (each.what + ("" if each.certain else "?"), str(each))
        for each in differences(before, now, known, version, frozenset(seen))
    ]


@pytest.mark.parametrize("via_root", [True, False])
@pytest.mark.parametrize("all_tables", [True, False])
def test_the_names_in_the_stream(via_root, all_tables):
    """The stream has partitions under the root's name if the publication says so."""
    seen = Catalog(via_root=via_root, all_tables=all_tables).look()
    assert {ROOT, PLAIN} == seen.streamed if via_root else {LEFT, RIGHT, PLAIN} == seen.streamed
    assert {PLAIN} | ({LEFT, RIGHT}) == seen.leaves.keys()
    assert seen.leaves[LEFT] == (ROOT if via_root else LEFT)


def test_the_topmost_of_several_publications():
    """If one publication has the root and another a partition, the stream has the root's name."""
    catalog = Catalog()
    catalog.publications["q"] = [2, "q", False, *OPERATIONS, False, None]
    catalog.publish(LEFT, "q")
    seen = catalog.look()
    assert (ROOT, ROOT) == (seen.leaves[LEFT], seen.leaves[RIGHT])
    del catalog.listed["p", ROOT]
    assert {LEFT: LEFT, PLAIN: PLAIN} == catalog.look().leaves


def test_schemas_and_exceptions():
    """A schema publishes its tables; a table that is excepted is left out with its partitions."""
    catalog = Catalog(all_tables=True)
    catalog.publish(ROOT, excepted=True)
    assert {PLAIN} == catalog.look().streamed
    catalog = Catalog()
    catalog.listed.clear()
    catalog.schemas.append(("p", 2200))
    assert {ROOT, PLAIN} == catalog.look().streamed
    catalog.tables[PLAIN]["namespace"] = 1
    assert {ROOT} == catalog.look().streamed


def test_nothing():
    """Equal pictures have no differences, and nothing is examined."""
    before, now = Catalog().look(), Catalog().look()
    assert ([], []) == (examined(before, now), found(before, now))


def test_attached_created_and_detached():
    """A partition that was created as one is told from one that was attached; one that is gone from one that was detached."""
    catalog = Catalog()
    before = catalog.look()
    catalog.table(20005, "born", parent=ROOT)
    catalog.table(20006, "older", parent=ROOT)
    del catalog.tables[LEFT]
    catalog.tables[RIGHT]["parent"] = None
    now = catalog.look()
    assert [
        ("partition_dropped", "public.left of public.root"),
        ("partition_detached", "public.right of public.root"),
        ("partition_created", "public.born of public.root"),
        ("partition_attached", "public.older of public.root"),
    ] == found(before, now, born=detail(born=True))


def test_partitions_under_their_own_names():
    """Without a root in the stream, the differences are those of the partition's own name."""
    catalog = Catalog(via_root=False)
    before = catalog.look()
    catalog.table(20005, "born", parent=ROOT)
    catalog.table(20006, "older", parent=ROOT)
    del catalog.tables[LEFT]
    catalog.tables[RIGHT]["parent"] = None
    assert [
        ("partition_dropped", "public.left"),
        ("partition_detached", "public.right"),
        ("partition_created", "public.born"),
        ("partition_attached", "public.older"),
    ] == found(before, catalog.look(), born=detail(born=True))


def test_a_detached_partition_that_stays_published():
    """Under FOR ALL TABLES a detached partition arrives under its own name from then on."""
    catalog = Catalog(all_tables=True)
    before = catalog.look()
    catalog.tables[LEFT]["parent"] = None
    now = catalog.look()
    expected = [("table_added", "public.left"), ("partition_detached", "public.left of public.root")]
    assert expected == found(before, now)
    back = [("table_removed", "public.left"), ("partition_attached", "public.left of public.root")]
    assert back == found(now, before)


def test_a_partition_that_moves():
    """A partition that moves to another root has left one and come to the other."""
    catalog = Catalog()
    catalog.table(20010, "other", partitioned=True)
    catalog.publish(20010)
    before = catalog.look()
    catalog.tables[LEFT]["parent"] = 20010
    assert [
        ("partition_detached", "public.left of public.root"),
        ("partition_attached", "public.left of public.other"),
    ] == found(before, catalog.look())


def test_tables():
    """Tables that were added, removed, dropped, and dropped and created again under the same name."""
    catalog = Catalog()
    catalog.table(20007, "again")
    catalog.publish(20007)
    before = catalog.look()
    catalog.table(20008, "again")
    catalog.publish(20008)
    del catalog.tables[20007], catalog.listed["p", 20007], catalog.listed["p", PLAIN]
    now = catalog.look()
    assert [
        ("table_removed", "public.plain"),
        ("table_dropped", "public.again"),
        ("table_added", "public.again"),
    ] == found(before, now)


def test_publications():
    """Publications that were emptied, altered, dropped, and created again."""
    catalog = Catalog()
    before = catalog.look()
    catalog.listed.clear()
    kinds = [what for what, _ in found(before, catalog.look())]
    assert "publication_emptied" == kinds[0]
    assert {"table_removed"} == set(kinds[1:])
    catalog = Catalog()
    catalog.publications["p"][4] = False
    assert [("publication_altered", "p")] == found(before, catalog.look())
    catalog.publications["p"][0] = 2
    assert [("publication_recreated", "p")] == found(before, catalog.look())
    catalog.publications.clear()
    catalog.listed.clear()
    assert ("publication_dropped", "p") == found(before, catalog.look())[0]


def test_filters_lists_and_identities():
    """Row filters and column lists that were changed, and replica identities that were weakened, also of partitions."""
    catalog = Catalog()
    before = catalog.look()
    catalog.publish(PLAIN, columns="1", filter="2")
    catalog.tables[PLAIN]["identity"] = 0
    catalog.tables[LEFT]["identity"] = 0
    now = catalog.look()
    assert [
        ("row_filter", "public.plain"),
        ("column_list", "public.plain"),
        ("replica_identity", "public.plain"),
        ("replica_identity", "public.left of public.root"),
    ] == found(before, now)
    assert ["row_filter", "column_list"] == [what for what, _ in found(now, before)]


TRUNCATED = ("partition_truncated", "public.left of public.root")
UNCERTAIN = ("partition_truncated?", "public.left of public.root")


@pytest.mark.parametrize(
    ("version", "details", "changes", "expected"),
    [
        (18, {}, {}, [TRUNCATED]),
        (13, {"tuples": 0.0}, {}, [UNCERTAIN]),
        # VACUUM FULL, CLUSTER, REPACK
        (18, {"tuples": 3.0, "pages": 1}, {}, []),
        (18, {"tuples": 0.0, "pages": 0}, {}, []),
        (13, {"tuples": 3.0, "pages": 1}, {}, []),
        # TRUNCATE, or one of these; then ANALYZE
        (18, {"tuples": 3.0, "pages": 1, "analyzed": 150.0}, {}, [UNCERTAIN]),
        (18, {"tuples": 3.0, "pages": 1, "analyzed": 50.0}, {}, []),
        # ALTER TABLE, with and without a TOAST table; and without a rewrite, after TRUNCATE
        (18, {"altered": True}, {"toast": 9}, []),
        (18, {"altered": True}, {}, [TRUNCATED]),
        (18, {}, {"toast": 9}, [UNCERTAIN]),
        # another tablespace
        (18, {"tuples": 3.0}, {"tablespace": 9}, []),
        (18, {}, {"tablespace": 9}, [UNCERTAIN]),
    ],
)
def test_truncated_or_rewritten(version, details, changes, expected):
    """A partition with another file was truncated or rewritten, or it cannot be told."""
    catalog = Catalog()
    before = catalog.look(100.0)
    catalog.tables[LEFT] |= {"file": 1, **changes}
    assert expected == found(before, catalog.look(200.0), version, left=detail(**details))


def test_altered_without_a_toast_table():
    """A table without a TOAST table that was altered may have been truncated as well."""
    catalog = Catalog()
    catalog.tables[LEFT]["toast"] = 0
    before = catalog.look()
    catalog.tables[LEFT]["file"] = 1
    assert [UNCERTAIN] == found(before, catalog.look(), left=detail(altered=True))


def test_a_truncate_of_the_root():
    """The stream has a TRUNCATE of the root: its partitions are not reported, others are."""
    catalog = Catalog()
    before = catalog.look()
    catalog.tables[LEFT]["file"] = catalog.tables[RIGHT]["file"] = 1
    now = catalog.look()
    two = [TRUNCATED, ("partition_truncated", "public.right of public.root")]
    assert two == found(before, now)
    assert [] == found(before, now, seen=[(ROOT, 700)])
    # The truncate was in a savepoint.
    assert [] == found(before, now, seen=[(ROOT, 690)])
    assert two[:1] == found(before, now, seen=[(ROOT, 700)], left=detail(xid=701))
    assert two == found(before, now, seen=[(PLAIN, 700)])


def test_a_publication_without_truncates():
    """Truncates are not reported if no publication has them."""
    catalog = Catalog()
    catalog.publications["p"][6] = False
    before = catalog.look()
    catalog.tables[LEFT]["file"] = 1
    assert [] == found(before, catalog.look())


@pytest.mark.parametrize(
    ("what", "fields", "commits", "expected"),
    [
        ("partition_attached", {"inserted": (5, 800)}, [(800, 80)], 80),
        ("partition_attached", {"inserted": (5, 800)}, [(790, 79), (800, 80), (810, 81)], 80),
        # The transaction with the lower xid has committed later.
        ("partition_attached", {"inserted": (800, 810), "written": (800,)}, [(810, 81), (800, 90)], 90),
        # A row without a message, such as one of a savepoint, whose xid precedes or follows.
        ("table_added", {"inserted": (800, 810)}, [(800, 80)], None),
        ("partition_attached", {"inserted": (800, 810)}, [(810, 81)], None),
        ("table_added", {"inserted": (5,)}, [(800, 80)], None),
        ("table_added", {"inserted": ()}, [(800, 80)], None),
        ("table_added", {"inserted": (5,), "members": (800,)}, [(800, 80)], 80),
        # The other row suffices.
        ("table_added", {"inserted": (5,), "members": (5, 800)}, [(800, 80)], None),
        # SET SCHEMA, SET LOGGED or another publication with all tables after the table was created.
        ("table_added", {"inserted": (800,), "written": (810,)}, [(800, 80), (810, 81)], None),
        ("table_added", {"inserted": (800,), "written": (700, 800)}, [(800, 80), (810, 81)], 80),
        ("partition_created", {"inserted": (7, 800)}, [(7, 80)], None),
        ("partition_detached", {"xid": 800, "event_trigger": 5}, [(800, 80), (801, 81)], 80),
        ("partition_detached", {"xid": 801, "event_trigger": 5}, [(800, 80), (801, 81)], None),
        ("partition_detached", {"xid": 800, "trigger": 5}, [(800, 80)], None),
        ("partition_detached", {"xid": 800, "event_trigger": 790}, [(800, 80)], None),
        ("partition_truncated", {"xid": 800, "trigger": 5}, [(800, 80)], 80),
        ("partition_truncated", {"xid": 800, "event_trigger": 5}, [(800, 80)], None),
        ("partition_truncated", {"xid": 700, "trigger": 5}, [(800, 80)], None),
        ("row_filter", {"xid": 800, "inserted": (800,)}, [(800, 80)], None),
        ("partition_attached", {"inserted": (800,)}, [], None),
    ],
)
def test_commits(what, fields, commits, expected):
    """The LSN of a change is that of a message only if the catalog proves that the message's transaction has made the change."""
    commits = [(xid, LSN(lsn)) for xid, lsn in commits]
    difference, details = Difference(what, LEFT, "public", "left"), detail(**fields)

    def recent(xid):
        return xid > 700

    assert expected == commit_of(difference, details, commits, recent, complete=True)
    assert commit_of(difference, None, commits, recent, complete=True) is None
    if what in {"partition_detached", "partition_truncated"}:
        assert commit_of(difference, details, commits, recent, complete=False) is None


@pytest.mark.parametrize(
    ("xid", "oldest", "expected"),
    [
        (99, 100, True),
        (100, 100, False),
        (150, 100, False),
        # The row was written after the look-up, or before the present epoch.
        (250, 100, False),
        (4294967000, (1 << 32) + 100, True),
        (4294967000, 4294967000, False),
        (2, 1, True),
    ],
)
def test_old_rows(xid, oldest, expected):
    """Whether the transaction of a row ended before an earlier look-up."""
    epoch = oldest >> 31 and 1 << 32
    seen = Snapshot(f"{epoch + 180}:{epoch + 200}:", LSN(1))
    assert seen.oldest == epoch + 180
    assert seen.precedes(xid, oldest) is expected
