"""A process that delivers one large transaction, and says its peak memory in MiB.

python large.py URL jsonl|parquet TABLES ROWS [OPTION=VALUE …]
"""

from __future__ import annotations

import random
import resource
import sys
from dataclasses import replace

from aiorepl import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl_sinks.s3 import S3Sink

AT_ONCE = 800


class WithoutPandas:
    """pyarrow imports pandas where it is installed: half of the memory that is allowed here, and none of it is the sink's."""

    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, WithoutPandas())


def main(url: str, files: str, tables: int, rows: int, **options: int | str) -> None:
    """Deliver it, in batches of which each is made when it is needed."""
    dice, stream = random.Random(1), Stream()
    made = [stream.table(f"t{n}", column("id", 23, key=True), column("note")) for n in range(tables)]
    sink = S3Sink(url, files=files, **options)
    sink.open(SinkContext("s", stream.position))
    stream.transaction(*(made[n % tables].insert(str(n), dice.randbytes(1024).hex()) for n in range(AT_ONCE)))
    (part,) = stream.slices()
    for begin in range(0, rows, AT_ONCE):
        last = begin + AT_ONCE >= rows
        changes = [
            type(change)(change.transaction, begin + place, change.layout, change.message)
            for place, change in enumerate(part.changes)
        ]
        end = part.end_lsn if last else None
        sink.write(Batch((replace(part, changes=changes, first=begin == 0, end_lsn=end),)))
        if begin % 8000 == 0 and not last:
            sink.flush()  # lists nothing, for the transaction is not complete
    sink.flush()
    sink.close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


if __name__ == "__main__":
    url, files, tables, rows, *options = sys.argv[1:]
    given = dict(option.split("=") for option in options)
    typed = {name: int(value) if value.isdecimal() else value for name, value in given.items()}
    main(url, files, int(tables), int(rows), **typed)
