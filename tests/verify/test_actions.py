"""Every action of the writers runs on a real server, and returns what it did."""

from __future__ import annotations

import random

import asyncpg
import pytest

from aiorepl.verify import actions, tables
from aiorepl.verify.actions import Scope

GROUPS = ("ACTIONS", "MESSAGES", "CHILDREN", "RENAMES", "GUESTS", "TRAPS", "COMPOSITES", "SCHEMA_CHANGES")
OTHERS = (actions.lock_table, actions.echo)
# They may find nothing to do, or do nothing to rows.
WITHOUT_ROWS = {"rename_parent", "lock_table", "add_column", "drop_column", "change_identity"}


@pytest.fixture
async def scope(database):
    """A transaction's context, in a schema with everything in it."""
    connection = await asyncpg.connect(database)
    await connection.execute(tables.create(rows=4, renames=True, children=1, guests=1, traps=True))
    await connection.execute("CREATE PUBLICATION verify FOR TABLE aiorepl_verify.guest_1")
    yield Scope(connection, tables.SCHEMA, random.Random(1), "1.1", 8, 50, 10_000_000, writer=1, drops=True)
    await connection.close()


@pytest.mark.parametrize(
    "action",
    [*(action for group in GROUPS for action in getattr(actions, group)), *OTHERS],
    ids=lambda action: action.__name__,
)
async def test_actions(scope, action):
    """Twenty runs of an action succeed, and some of them change rows."""
    done = []
    for number in range(20):
        scope.stamp = f"1.{number}"
        await scope.connection.execute("BEGIN")
        done += await action(scope)
        await scope.connection.execute("COMMIT")

    assert done or action.__name__ in WITHOUT_ROWS


async def test_items_are_written_after_their_type_was_widened(scope):
    """Items are inserted and updated although the composite type has one more attribute."""
    await actions.widen_place(scope)
    done = [operation.kind for _ in range(40) for operation in await actions.write_item(scope)]

    assert {"insert", "update"} <= {*done}


async def test_parents_are_renamed_and_moved(scope):
    """Children find their parents under each of their names."""
    names = set()
    for _ in range(40):
        await actions.rename_parent(scope)
        await actions.change_child(scope)
        names.add(await actions._parent(scope, "tree"))

    assert 4 == len(names)


async def test_a_guest_tells_whether_it_is_published(scope):
    """Rows are marked while the publication does not have their table."""
    (first, *_) = await actions.write_guest(scope)
    await scope.connection.execute("ALTER PUBLICATION verify DROP TABLE aiorepl_verify.guest_1")
    (second, *_) = await actions.write_guest(scope)

    assert (False, True) == (first.unpublished, second.unpublished)
