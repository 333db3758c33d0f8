"""Names in the source's catalog, which many roles may choose, cannot forge lines of the log."""

from __future__ import annotations

import asyncio

from aiorepl import Delivery, Pipeline
from aiorepl.testing.faults import MemorySink
from tests.waiting import until

NAME = "items\nERROR forged \x1b[31m"
COLUMN = "note\r\x9b2J"


async def test_names_in_warnings(published, caplog):
    """The warnings about a table and a column, and the error about their publication, are printable lines."""
    await published.execute(f'CREATE TABLE "{NAME}" (id int PRIMARY KEY, "{COLUMN}" text)')
    sink = MemorySink()

    async def rows() -> int:
        return sum(change.kind == "insert" for change in sink.changes)

    async with asyncio.timeout(90):
        async with Pipeline(published.source(), [Delivery(sink, schema_changes=True)]):
            for number, statement in enumerate(
                ("", f'ALTER TABLE "{NAME}" ALTER "{COLUMN}" TYPE varchar(9) USING upper("{COLUMN}")')
            ):
                if statement:
                    await published.execute(statement)
                await published.execute(f'INSERT INTO "{NAME}" VALUES ({number})')
                await until(rows, lambda found, least=number: found > least)
    found = [record.getMessage() for record in caplog.records if record.name.startswith("aiorepl")]

    assert any(r"items\nERROR forged \x1b[31m" in message and r"note\r\x9b2J" in message for message in found)
    assert all(message.isprintable() for message in found)
