"""gs://: objects through the part of the XML API of Google Cloud Storage that it shares with S3."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest

from aiorepl import ObjectStore, PermanentError
from aiorepl.storage.remote import RemoteStore
from aiorepl.storage.store import Superseded
from aiorepl_sinks.s3 import S3Sink
from tests.sinks.s3.google import Google, key, service_account

pytestmark = pytest.mark.by_day


@pytest.fixture(scope="module")
def private():
    """The key of the account that is let in."""
    return key()


@pytest.fixture
def google(s3_server, private):
    """The API, over HTTP."""
    made = Google(s3_server, private.public_key())
    yield made
    made.stop()


@pytest.fixture
def sink(google, bucket, private):
    """A sink that writes to the bucket of this test."""

    def make(**options) -> S3Sink:
        config = {"service_account_key": service_account(options.pop("key", private))}
        url = f"gs://{bucket.name}/some/prefix"
        return S3Sink(**{"url": url, "endpoint": google.endpoint, "config": config, **options})

    return make


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_objects_and_a_manifest_over_a_restart(bucket, google, sink, read, life, source, files):
    """The second sink begins where the first one ended, and the manifest holds each event once."""
    first, second = source.batch([1, 2], [3]), source.batch([4])
    assert source.context.position == life(sink(files=files), source, first)
    assert first.end_lsn == life(sink(files=files), source, second).lsn

    names = read.listed(bucket)
    assert read.data(bucket) == sorted(names)
    found = read.rows(bucket, names) if files == "parquet" else read.lines(bucket, names)
    assert [1, 2, 3, 4] == [row["id"] if files == "parquet" else row["new"]["id"] for row in found]
    created = [
        unquote(path) for _, path, headers in google.requests if "x-goog-if-generation-match" in headers
    ]
    assert 4 == len(created)
    assert all("_aiorepl/manifest/" in path for path in created)


def test_large_objects_go_up_in_parts(bucket, google, sink, read, life, source):
    """Large objects are uploaded in parts, and are complete."""
    batch = source.batch(list(range(20)), note="x" * 1_000_000)
    life(sink(compression="none"), source, batch)
    (name,) = read.listed(bucket)
    assert list(range(20)) == [event["new"]["id"] for event in read.lines(bucket, [name])]
    assert any("partNumber=2" in path for _, path, _ in google.requests)
    assert [] == bucket.uploads()


def test_two_writers(bucket, sink, read, source):
    """The earlier writer fails, and the manifest has each event once."""
    one, two = sink(), sink()
    batch = source.batch([1, 2])
    one.open(source.context)
    two.open(source.context)
    one.write(batch)
    with pytest.raises(PermanentError, match=r"gs://.*: another process or sink writes there"):
        two.write(batch)
    two.close()
    one.flush()
    one.close()
    assert [1, 2] == [event["new"]["id"] for event in read.lines(bucket, read.data(bucket))]


def test_what_a_dead_writer_announced_and_never_wrote(bucket, sink, read, life, source):
    """The announced objects of a dead writer are deleted, whether it wrote them or not."""
    dead = sink(object_bytes=4000, memory_bytes=8000)
    dead.open(source.context)
    for part in source.parts(list(range(200)), at_once=50)[:-1]:
        dead.write(part)
    unlisted = read.data(bucket)
    for name in unlisted[::2]:
        bucket.client.delete_object(Bucket=bucket.name, Key=f"some/prefix/{name}")
    # No close: nobody is there to do it.
    life(sink(), source, source.batch([1000]))
    left = read.data(bucket)
    assert read.listed(bucket) == left
    assert unlisted
    assert not set(unlisted) & set(left)


def test_what_the_store_refuses(sink, source):
    """The errors are permanent, say what to do, and contain no key."""
    stranger = key()
    for options, says in (
        ({"key": stranger}, "401 AuthenticationRequired: access was denied: check the credentials"),
        ({"url": "gs://there-is-no-such-bucket/x"}, "404 NoSuchBucket: the bucket does not exist: create it"),
    ):
        refused_one = sink(**options)
        with pytest.raises(PermanentError, match=says) as refused:
            refused_one.open(source.context)
        assert not re.search("PRIVATE KEY|eyJ", f"{refused.value} {refused.value.__cause__} {refused_one!r}")


def test_a_journal_is_replaced_by_generations(bucket, google, private):
    """Of two replacements of one generation, the second is refused."""
    config = {"service_account_key": service_account(private), "base_url": google.endpoint}
    store = RemoteStore(ObjectStore(f"gs://{bucket.name}/some/prefix", config))
    store.lock()
    first = store.replace("position.json", b"1", None)
    second = store.replace("position.json", b"2", first)
    for stale in (None, first):
        with pytest.raises(Superseded):
            store.replace("position.json", b"3", stale)
    assert (b"2", second) == store.load("position.json")
