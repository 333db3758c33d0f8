"""The sink of docs/explanation/exactly-once.md counts each order once, wherever its delivery is interrupted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aiorepl import Batch, SinkContext
from aiorepl.testing import Stream
from aiorepl.testing.messages import column

PAGE = Path(__file__).parents[2] / "docs/explanation/exactly-once.md"
ORDERS = 5


@pytest.fixture
def counted() -> Any:
    """The class of the page."""
    (block,) = re.findall(
        r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    names: dict[str, Any] = {}
    exec(block.replace("asyncio.run(main())", ""), names)
    return names["Counted"]


@pytest.mark.parametrize("interrupted", range(ORDERS + 1))
async def test_a_large_transaction(counted, connection, interrupted):
    """Two transactions come in slices of one change each; after some slices, another process begins at the stored position."""
    await connection.execute("CREATE TABLE counted (orders int, position text)")
    await connection.execute("INSERT INTO counted VALUES (0, NULL)")
    stream = Stream()
    orders = stream.table("orders", column("id", 23, key=True))
    stream.transaction(orders.insert("0"))
    stream.transaction(*(orders.insert(str(number)) for number in range(1, ORDERS)))
    slices = stream.slices(1)
    context = SinkContext("counted", stream.position)

    sink = counted(connection)
    await sink.open(context)
    for part in slices[:interrupted]:
        await sink.write(Batch([part]))
    sink = counted(connection)
    position = await sink.open(context)
    again = [part for part in slices if part.transaction.commit_lsn >= position.lsn]
    for part in again:
        await sink.write(Batch([part]))

    assert await connection.fetchval("SELECT orders FROM counted") == ORDERS
