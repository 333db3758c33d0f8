"""``verify``: compares the tables that ``mirror`` writes with the source."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from aiorepl.checked import checked
from aiorepl.durations import Duration, seconds_of
from aiorepl.secret import Secret
from aiorepl.source.source import Source
from aiorepl.spark.lake.table import Lake
from aiorepl.spark.mirroring.mirrored import MirroredTables
from aiorepl.spark.verifying.results import TableResult
from aiorepl.spark.verifying.verification import Verification
from aiorepl.storage.opening import Location

# Imported at run time, because ``checked`` reads the annotations.
from aiorepl.transforms.selection import Selection


@checked("verify", zero=("timeout",), empty=("dsn",), own=("slot", "spark"))
def verify(
    dsn: str | Secret[str] | None,
    journal: Location,
    target: Location,
    *,
    slot: str,
    publication: str | tuple[str, ...] | list[str],
    tables: list[str] | tuple[str, ...] | None = None,
    keys: Mapping[str, list[str] | tuple[str, ...]] | None = None,
    range_rows: int = 100_000,
    timeout: Duration = 600.0,
    show_keys: bool = False,
    repair: bool = False,
    ended: bool = False,
    journal_selection: Selection | None = None,
    selection: Selection | None = None,
    spark: SparkSession | None = None,
    lake: Lake | None = None,
) -> list[TableResult]:
    """Compare the tables of a mirror with their source at one LSN, by checksums of key ranges.

    The pipeline and the mirror must be running. Rows that change meanwhile are compared again. The role must be allowed to read
    the tables, and needs REPLICATION, because a temporary slot exports the snapshot.

    :param dsn: the database, as ``Source`` takes it.
    :param journal: with ``target`` and ``lake``: as in ``mirror``.
    :param slot: the pipeline's slot.
    :param publication: one name or several.
    :param tables: ``schema.table``; ``None``: all that are mirrored.
    :param keys: by table, the columns that identify a row, where the replica identity names none.
    :param range_rows: about how many rows a key range has.
    :param timeout: how long the mirror may take to pass the LSN of a snapshot, such as ``"10m"``.
    :param show_keys: name the keys of rows that differ, and the bounds of all ranges.
    :param repair: ask the pipeline for snapshots of the rows that are missing, different or there twice, which the mirror then
        applies. Delete the rows that only the lake has, in one commit of their table (in the mode soft_delete, mark them as deleted;
        in the mode history, end their versions), unless the publications leave out deletes or truncates.
    :param ended: also compare ended versions (mode history) and deleted rows (soft_delete) with the journal, which is read from its
        beginning.
    :param journal_selection: the pipeline's ``journal_selection``. Columns that it may hide are not compared.
    :param selection: the mirror's ``selection``, which it needs if the mirror has one. Columns that it may hide are not compared.
    :param spark: its executors read the tables that have more than 256 MiB of files; without it, this process reads all tables.
    :raises ConfigurationError: a table is not mirrored, the mirror has a selection that is not given, or the role lacks a privilege.
    :raises AioreplError: the mirror did not pass the snapshot's LSN in time, or the server failed.
    """
    source = Source(Secret.of(dsn) if dsn is not None else None, slot=slot, publication=tuple_of(publication))
    verification = Verification(
        source,
        MirroredTables(target, lake),
        journal,
        keys=lambda schema, name: (keys or {}).get(f"{schema}.{name}", ()),
        range_rows=range_rows,
        timeout=seconds_of("timeout", timeout),
        selection=selection,
        journal_selection=journal_selection,
        session=None if spark is None else lambda: spark,
    )
    # In another thread: in a notebook, the thread of the cells already has a running loop.
    with ThreadPoolExecutor(1, thread_name_prefix="aiorepl-verify") as pool:
        work = verification.run(tables, show_keys=show_keys, repair=repair, ended=ended)
        return pool.submit(asyncio.run, work).result()


def tuple_of(publication: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of one or several publications."""
    return (publication,) if isinstance(publication, str) else tuple(publication)
