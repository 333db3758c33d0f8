"""az://: objects in Azurite, with signatures that it verifies."""

from __future__ import annotations

import base64
from pathlib import Path

import obstore
import pytest

from aiorepl import PermanentError
from aiorepl.testing.conformance import SinkConformance, native_events

SCRIPT = Path(__file__).parents[3] / "scripts" / "azure.py"
KEY = base64.b64encode(b"test-secret").decode()
SECRET = base64.b64encode(b"s3cr3t").decode()

pytestmark = [pytest.mark.by_day, pytest.mark.xdist_group("azure")]


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_objects_and_a_manifest_over_a_restart(container, read, life, source, files):
    """The second sink begins where the first one ended, and the manifest holds each event once."""
    first, second = source.batch([1, 2], [3]), source.batch([4])
    assert source.context.position == life(container.sink(files=files), source, first)
    assert first.end_lsn == life(container.sink(files=files), source, second).lsn

    names = read.listed(container)
    assert read.data(container) == sorted(names)
    found = read.rows(container, names) if files == "parquet" else read.lines(container, names)
    assert [1, 2, 3, 4] == [row["id"] if files == "parquet" else row["new"]["id"] for row in found]
    assert [1, 2, 3, 4] == [entry["sequence"] for entry in read.entries(container)]


def test_large_objects_go_up_in_blocks(container, read, life, source):
    """Large objects are uploaded in blocks, and are complete."""
    batch = source.batch(list(range(20)), note="x" * 1_000_000)
    life(container.sink(compression="none"), source, batch)
    (name,) = read.listed(container)
    assert list(range(20)) == [event["new"]["id"] for event in read.lines(container, [name])]


def test_two_writers(container, read, source):
    """The earlier writer fails, and the manifest has each event once."""
    one, two = container.sink(), container.sink()
    batch = source.batch([1, 2])
    one.open(source.context)
    two.open(source.context)
    one.write(batch)
    with pytest.raises(PermanentError, match=r"az://.*: another process or sink writes there"):
        two.write(batch)
    two.close()
    one.flush()
    one.close()
    assert [1, 2] == [event["new"]["id"] for event in read.lines(container, read.data(container))]


def test_what_a_dead_writer_announced_and_never_wrote(container, read, life, source):
    """The announced objects of a dead writer are deleted, whether it wrote them or not."""
    dead = container.sink(object_bytes=4000, memory_bytes=8000)
    dead.open(source.context)
    for part in source.parts(list(range(200)), at_once=50)[:-1]:
        dead.write(part)
    unlisted = read.data(container)
    for name in unlisted[::2]:
        obstore.delete(container.store, name)
    # No close: nobody is there to do it.
    batch = source.batch([1000])
    life(container.sink(), source, batch)
    left = read.data(container)
    assert read.listed(container) == left
    assert not set(unlisted) & set(left)
    assert unlisted


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"url": "az://there-is-no-such-container/x"},
            "404 ContainerNotFound: the container does not exist: create",
        ),
        (
            {"config": {"account_key": SECRET}},
            "403 Auth.*: the account, its key or its token is wrong",
        ),
        (
            {"config": {"account_name": "who"}},
            "403 Auth.*: the account, its key or its token is wrong",
        ),
    ],
    ids=["container", "key", "account"],
)
def test_what_the_store_refuses(container, source, options, says):
    """The error is permanent, says what to do, and contains no key."""
    sink = container.sink(**options)
    with pytest.raises(PermanentError, match=says) as refused:
        sink.open(source.context)
    assert SECRET not in f"{refused.value} {refused.value.__cause__} {sink!r}"


class TestContainer(SinkConformance):
    """JSON lines, by way of a layer that fails on purpose."""

    exactly_once = True
    atomic = True
    order = "table"

    @pytest.fixture(autouse=True)
    def target(self, container, read, new_layer, azurite):
        """A container of each test's own."""
        self.container, self.reader, self.layer = container, read, new_layer(azurite)

    def outage(self):
        """The server replies 503."""
        return self.layer.outage()

    def lost_answer(self):
        """The server writes an object, and its answer is lost."""
        return self.layer.lost_answers()

    def make_sink(self):
        return self.container.sink(
            endpoint=f"{self.layer.endpoint}/tests", object_bytes=4000, memory_bytes=20000
        )

    def read(self):
        """The lines of the objects in the manifest."""
        return native_events(self.reader.lines(self.container, self.reader.listed(self.container)))
