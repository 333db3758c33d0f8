"""A transaction far larger than the memory that the sink may take: bounded, invisible until its end, whole then."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORKER = """
import sys
from pathlib import Path

from aiorepl import Batch, SinkContext
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream
from aiorepl_sinks.s3 import S3

MIB = 1 << 20


def peak():
    # Not ru_maxrss, which begins with what the tests' process has.
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1])


folder, files, entries = Path(sys.argv[1]), sys.argv[2], None
stream = Stream()
table = stream.table("items", column("id", 23, key=True), column("note"))
sink = S3(folder.as_uri(), files=files, object_bytes=8 * MIB, memory_bytes=16 * MIB)
sink.open(SinkContext("s", stream.position))

# One transaction of 256 MiB, in slices of which each is made when it is needed.
from dataclasses import replace
import random
dice = random.Random(1)
stream.transaction(*(table.insert(str(n), dice.randbytes(512).hex()) for n in range(1000)))
(part,) = stream.slices()
before = None
for number in range(256):
    last = number == 255
    changes = []
    for place, change in enumerate(part.changes):
        changes.append(type(change)(change.transaction, number * 1000 + place, change.layout, change.message))
    cut = replace(part, changes=changes, first=number == 0, end_lsn=part.end_lsn if last else None)
    sink.write(Batch((cut,)))
    if number == 40:
        before = peak()
        sink.flush()
    if number == 250:
        sink.flush()
        assert not any(b'"path"' in p.read_bytes() for p in folder.glob("_aiorepl/manifest/*.json"))
print((peak() - before) // 1024)
sink.flush()
sink.close()
"""


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_a_huge_transaction(tmp_path, read, files):
    """256 MiB in slices through 16 MiB: nothing grows, and the manifest lists it at its end, all of it."""
    said = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path), files], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    assert int(said.stdout) < 32

    store = read.folder(tmp_path)
    claim, entry = read.entries(store)
    assert [] == claim["objects"]
    assert 256_000 == sum(found["events"] for found in entry["objects"])
    assert len(entry["objects"]) > 10
    assert sorted(read.data(store)) == sorted(read.listed(store))
    ordinals = []
    for name in read.listed(store):
        events = read.lines(store, [name]) if files == "jsonl" else read.rows(store, [name])
        ordinals += [event.get("ordinal", event.get("_ordinal")) for event in events]
    assert list(range(256_000)) == ordinals
