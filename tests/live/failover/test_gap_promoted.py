"""A promoted standby that lacks the last transactions of the old primary, and whose slot is lost soon after: all tables are read as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from aiorepl import Pipeline
from tests.live.lossy import SETTINGS, Log, Lossy

pytestmark = pytest.mark.by_day


@pytest.mark.parametrize("delivered", [True, False], ids=["delivered", "not delivered"])
async def test_rows_that_only_the_old_primary_had(
    published: Any, pair: Any, way: dict[str, Any], delivered: bool
) -> None:
    """No row is missing. Rows that the promoted server does not have are gone, and xids that it used again say nothing."""
    lossy = Lossy(published, way)
    lossy.sinks["log"] = Log(keeps_position=True)
    lossy.options = {"dsn": pair.dsn, "failover": True}
    await lossy.run_twice()
    async with Pipeline(published.source(**lossy.options), lossy.sinks, **lossy.way):
        await pair.synchronized()
    await pair.hold_back()
    await lossy.execute(*(f"INSERT INTO events VALUES ({n})" for n in range(200, 220)))
    if delivered:
        await lossy.run()
    await pair.promote_as_it_is()
    published.connection, old = pair.standby_client, published.connection
    try:
        for name, value in SETTINGS.items():
            await lossy.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await lossy.execute("SELECT pg_reload_conf()")
        await lossy.execute("INSERT INTO items VALUES (51)", "INSERT INTO events VALUES (300)")
        await lossy.lose()
        await lossy.run()
        await lossy.execute("INSERT INTO items VALUES (52)")
        await lossy.run()
        assert lossy.copied == await lossy.both()
    finally:
        published.connection = old
