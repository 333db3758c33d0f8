"""The progress of the tables of an initial snapshot. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aiorepl.lsn import LSN
from aiorepl.snapshot.ledger.ledger import ChunkLedger
from aiorepl.snapshot.statistics import TableCounters, TableStatistics


def progress(
    counters: Iterable[TableCounters], ledger: ChunkLedger, durable: LSN, *, reading: bool
) -> list[TableStatistics]:
    """Return the progress of the tables that are read before the stream, without tables that were handed over.

    :param counters: the counters of the tables, in the plan's order.
    :param ledger: the ledger of an initial snapshot.
    :param durable: the position up to which all consumers are durable.
    :param reading: whether tables are still read, or going to be read, before the stream.
    """
    done = ledger.chunks_done(durable)
    # Once the rest is handed over, the plan is empty.
    in_stream = ledger.initial is None or durable not in ledger.initial
    found, end = [], 0
    for each in counters:
        table = each.statistics()
        end += table.chunks or 0
        if table.state == "delivered" and (in_stream or end <= done):
            table = replace(table, state="complete")
        # Tables that were handed over, or left out, are in the ledger.
        if reading or table.state in ("delivered", "complete"):
            found.append(table)
    return found
