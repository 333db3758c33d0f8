"""Objects far larger than the memory that a sink may take, and many tables at once: flat, and whole in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.by_day

WORKER = Path(__file__).with_name("large.py")


def delivered(folder, files, tables, rows, *options):
    """The peak, in MiB, of a process that delivers one transaction of so many rows of 2 KiB."""
    # A child begins with the peak of who forks it: a shell is small.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, WORKER, folder.as_uri(), files, str(tables)]
    said = subprocess.run([*command, str(rows), *options], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return int(said.stdout)


@pytest.fixture
def limit(tmp_path_factory, files):
    """50 MiB more than one row takes: about 50 MiB for the interpreter, and 60 for Arrow."""
    return delivered(tmp_path_factory.mktemp("one"), files, 1, 1) + 50


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_one_huge_object(tmp_path, read, files, limit):
    """80 MiB in one object: they are never in memory at once, and the object is complete."""
    peak = delivered(tmp_path, files, 1, 40_000, "object_bytes=1073741824")
    assert peak < limit

    store = read.folder(tmp_path)
    claim, entry = read.entries(store)
    assert [] == claim["objects"]
    (found,) = entry["objects"]
    assert 40_000 == found["events"]
    assert found["bytes"] == (tmp_path / found["path"]).stat().st_size
    assert [found["path"]] == read.data(store)
    if files == "parquet":
        file = pq.ParquetFile(tmp_path / found["path"])
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        assert 12 < len(groups) < 40
        assert max(group.total_byte_size for group in groups) < 4 * 1024 * 1024
        assert list(range(40_000)) == file.read(columns=["_ordinal"])["_ordinal"].to_pylist()
    else:
        assert list(range(40_000)) == [event["ordinal"] for event in read.lines(store, [found["path"]])]


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_many_tables(tmp_path, read, files, limit):
    """200 open tables take as little memory as one, and each is one object."""
    peak = delivered(tmp_path, files, 200, 40_000)
    assert peak < limit

    store = read.folder(tmp_path)
    objects = read.entries(store)[-1]["objects"]
    assert 200 == len(objects)
    assert {200} == {found["events"] for found in objects}
    assert sorted(found["path"] for found in objects) == read.data(store)


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_a_huge_transaction_in_small_objects(tmp_path, read, files, limit):
    """Objects are uploaded as they fill, memory does not grow with their number, and the manifest lists all of them."""
    peak = delivered(tmp_path, files, 1, 40_000, "object_bytes=4194304")
    assert peak < limit

    store = read.folder(tmp_path)
    assert [0] == [len(entry["objects"]) for entry in read.entries(store)[:-1]]
    assert len(read.listed(store)) > 10
    assert sorted(read.data(store)) == sorted(read.listed(store))
    ordinals = []
    for name in read.listed(store):
        events = read.lines(store, [name]) if files == "jsonl" else read.rows(store, [name])
        ordinals += [event.get("ordinal", event.get("_ordinal")) for event in events]
    assert list(range(40_000)) == ordinals
