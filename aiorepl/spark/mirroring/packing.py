"""Packs small Arrow tables into bytes, which rows of Spark pass between executors and the driver. Pure."""

from __future__ import annotations

import pyarrow as pa


def pack(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(data: bytes) -> pa.Table:
    """Return the table of an Arrow IPC stream.

    :param data: ``bytes``, or the ``bytearray`` that Spark returns.
    """
    return pa.ipc.open_stream(bytes(data)).read_all()
