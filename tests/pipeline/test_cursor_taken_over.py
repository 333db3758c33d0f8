"""A sink whose cursor another process takes over is refused, also before its first move."""

from __future__ import annotations

import pytest

from aiorepl import ConfigurationError, Pipeline
from aiorepl.journal import Cursors
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column


async def test_between_registration_and_the_first_move(tmp_path):
    """Another reader that registers under the sink's name keeps the cursor; the sink fails, and the other sink goes on."""
    stream = Stream()
    stream.transaction(stream.table("t", column("id", 23, key=True)).insert("1"))
    stolen: list[Cursors] = []

    class Opening(MemorySink):
        async def open(self, context):
            stolen.append(Cursors(tmp_path))
            stolen[0].advance("one", context.position.at(stream.position.lsn))
            return await super().open(context)

    other = MemorySink()
    pipeline = Pipeline(
        MemorySource(stream=stream), {"one": Opening(), "other": other}, journal=str(tmp_path), until="now"
    )
    with pytest.raises(ConfigurationError, match="another reader has taken over cursor 'one'"):
        await pipeline.run()
    assert 1 == len(other.changes)
    assert stream.position.lsn == Cursors(tmp_path).get("one").lsn
