"""A process that delivers a stream into a bucket, to be killed: each life cuts the batches otherwise."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

from aiorepl import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl_sinks.s3 import S3Sink

INT4 = 23


def told() -> Stream:
    """Two tables, small transactions and one that is larger than a batch."""
    stream = Stream()
    one, two = (stream.table(name, column("id", INT4, key=True), column("note")) for name in ("one", "two"))
    for number in range(0, 300, 10):
        stream.transaction(
            *(one.insert(str(number + i), "x" * 100) for i in range(9)), two.insert(str(number), "y")
        )
    stream.transaction(*(one.insert(str(number), "z" * 1000) for number in range(1000, 1200)))
    stream.transaction(two.insert("2000", "last"))
    return stream


def main(options: dict[str, Any], seed: int) -> None:
    """One life."""
    dice, stream = random.Random(seed), told()
    sink = S3Sink(**options)
    held = sink.open(SinkContext("s", stream.position))
    assert held is not None
    slices = stream.again(dice.choice([None, 5, 20]), after=held.lsn)
    while slices:
        count = dice.randint(1, 12)
        sink.write(Batch(tuple(slices[:count])))
        slices = slices[count:]
        if dice.random() < 0.3:
            sink.flush()
    sink.flush()
    sink.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
