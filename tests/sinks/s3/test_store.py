"""The store's errors and what they mean: the S3 API over HTTP, with injected faults."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime

import pytest

from aiorepl import Batch, ConfigurationError, PermanentError, Rejection, SinkContext, TransientError
from aiorepl.storage.objects.errors import translate
from aiorepl_sinks.s3 import S3Sink

pytestmark = pytest.mark.by_day

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SECRET = "test-secret"


def test_objects_and_a_manifest(bucket, read, life, source):
    """Objects are in folders by table and commit date, named by their first event; the entry lists them."""
    batch = source.batch([1, 2], [3])
    life(bucket.sink(), source, batch)

    (name,) = read.listed(bucket)
    first = batch.slices[0].transaction
    date = first.commit_time.date()
    named = f"{first.commit_lsn:016X}-0000000000-00000001-00000001.jsonl.zst"
    assert f"schema=public/table=items/date={date}/{named}" == name
    assert [1, 2, 3] == [event["new"]["id"] for event in read.lines(bucket, [name])]
    claim, entry = read.entries(bucket)
    assert [] == claim["objects"]
    assert (2, 1, str(batch.end_lsn)) == (entry["sequence"], entry["epoch"], entry["position"]["lsn"])
    last = batch.slices[-1].transaction.commit_lsn
    assert [
        {
            "path": name,
            "schema": "public",
            "table": "items",
            "date": str(date),
            "first": {"commit_lsn": str(first.commit_lsn), "ordinal": 0},
            "last": {"commit_lsn": str(last), "ordinal": 0},
            "events": 3,
            "bytes": len(bucket.read(name)),
        }
    ] == entry["objects"]


@pytest.mark.parametrize(
    ("compression", "ending"), [("none", ".jsonl"), ("gzip", ".jsonl.gz"), ("zstd", ".jsonl.zst")]
)
def test_compressions_and_formats(bucket, read, life, source, compression, ending):
    """Lines are the events of the chosen format, in the chosen compression."""
    sink = bucket.sink(compression=compression, format="debezium", layout="{schema}.{table}")
    life(sink, source, source.batch([1, 2]))

    (name,) = read.listed(bucket)
    assert name.startswith("public.items/")
    assert name.endswith(ending)
    assert ["c", "c"] == [event["op"] for event in read.lines(bucket, [name])]
    if compression == "zstd":
        # One frame, which says how much is in it: there are readers that need either.
        content = bucket.read(name)
        whole = zstd.decompress(content)
        assert len(whole) == zstd.get_frame_info(content).decompressed_size
        assert zstd.get_frame_size(content) == len(content)


def test_large_objects_go_up_in_parts(bucket, layer, read, life, source):
    """Large objects are uploaded in parts, and are complete; no upload is left."""
    batch = source.batch(list(range(20)), note="x" * 1_000_000)
    life(bucket.sink(endpoint=layer.endpoint, compression="none"), source, batch)

    (name,) = read.listed(bucket)
    assert list(range(20)) == [event["new"]["id"] for event in read.lines(bucket, [name])]
    assert 4 == sum("partNumber=" in path for _, path in layer.requests)
    assert [] == bucket.uploads()


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_parquet(bucket, read, life, source, size):
    """Small and in parts."""
    batch = source.batch(list(range(10)), note="x" * size)
    life(bucket.sink(files="parquet", compression="none"), source, batch)

    (name,) = read.listed(bucket)
    assert name.endswith(".parquet")
    assert list(range(10)) == [row["id"] for row in read.rows(bucket, [name])]


def test_an_upload_that_fails_is_aborted(bucket, layer, read, source):
    """If a part is rejected, the upload is aborted, the flush fails, and the next flush succeeds."""
    sink = bucket.sink(endpoint=layer.endpoint, compression="none")
    sink.open(source.context)
    sink.write(source.batch(list(range(20)), note="x" * 1_000_000))
    layer.faults.append(read.Fault("PUT", "partNumber=2", status=400, code="InvalidRequest"))
    with pytest.raises(PermanentError, match="the store replied 400 InvalidRequest"):
        sink.flush()
    assert [] == bucket.uploads()
    assert [] == read.data(bucket)

    sink.flush()
    sink.close()
    assert 20 == len(read.lines(bucket, read.listed(bucket)))


@pytest.mark.parametrize("status", [500, 503])
def test_a_store_that_is_busy_is_asked_again(bucket, layer, read, life, source, status):
    """A few times, without anybody noticing."""
    layer.faults.append(read.Fault("PUT", "", status=status, times=3))
    life(bucket.sink(endpoint=layer.endpoint), source, source.batch([1, 2]))

    assert [1, 2] == [event["new"]["id"] for event in read.lines(bucket, read.listed(bucket))]


def test_a_store_that_stays_busy(bucket, layer, read, source):
    """The error is transient, and the same flush succeeds afterwards."""
    sink = bucket.sink(endpoint=layer.endpoint)
    sink.open(source.context)
    sink.write(source.batch([1, 2]))
    fault = read.Fault("PUT", "table%3Ditems|table=items", status=503, times=1000)
    layer.faults.append(fault)
    with pytest.raises(TransientError, match="writing: the store replied 503 SlowDown"):
        sink.flush()
    assert 6 == fault.hits  # once, and five times again
    assert [] == read.data(bucket)

    layer.faults.clear()
    sink.flush()
    sink.close()
    assert [1, 2] == [event["new"]["id"] for event in read.lines(bucket, read.listed(bucket))]


def test_an_entry_whose_answer_was_lost(bucket, layer, read, life, source):
    """The entry exists, and the sink recognises it as its own."""
    layer.faults.append(read.Fault("PUT", "manifest/0+2", lost=True))
    life(bucket.sink(endpoint=layer.endpoint), source, source.batch([1, 2]))

    assert 2 == len(read.entries(bucket))
    assert [1, 2] == [event["new"]["id"] for event in read.lines(bucket, read.listed(bucket))]


def test_two_writers(bucket, read, source):
    """The earlier writer fails, and the manifest has each event once."""
    one, two = bucket.sink(), bucket.sink()
    batch = source.batch([1, 2])
    one.open(source.context)
    two.open(source.context)
    one.write(batch)
    with pytest.raises(
        PermanentError, match=r"s3://.*: another process or sink writes there.*a prefix of its own"
    ):
        two.write(batch)
    two.close()
    one.flush()
    one.close()

    assert [1, 2] == [event["new"]["id"] for event in read.lines(bucket, read.data(bucket))]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": "s3://there-is-no-such-bucket/x"}, "404 NoSuchBucket: the bucket does not exist: create it"),
        ({"secret_access_key": f"{SECRET} wrong"}, "403 SignatureDoesNotMatch: the secret is wrong"),
        ({"access_key_id": "who"}, "403 InvalidAccessKeyId: the store does not know the access key"),
    ],
    ids=["bucket", "secret", "key"],
)
def test_what_the_store_refuses(bucket, source, moto, options, says):
    """The error is permanent, says what to do, and contains no secret."""
    if "url" not in options and moto:
        pytest.skip("moto looks at no signatures: run make servers, which fetches a server that does")
    sink = bucket.sink(**options)
    with pytest.raises(PermanentError, match=says) as refused:
        sink.open(source.context)
    assert SECRET not in f"{refused.value} {refused.value.__cause__} {sink!r}"


def test_nobody_there(source):
    """A server that does not listen is a transient error."""
    sink = S3Sink("s3://bucket/x", endpoint="http://127.0.0.1:9", access_key_id="a", secret_access_key=SECRET)
    with pytest.raises(TransientError, match="listing: no answer from the store") as refused:
        sink.open(source.context)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("S3", "AWS_ACCESS_KEY_ID"),
        ("GCS", "GOOGLE_SERVICE_ACCOUNT"),
        ("MicrosoftAzure", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_no_credentials(store, says):
    """The error names the missing credentials if the machine has no role either."""
    asked = f"Generic {store} error: Error performing GET http://169.254.169.254/token - status code: 403"
    told = translate(OSError(asked))
    assert told.transient
    assert says in str(told)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("http://bucket/x", {}, "url is s3://bucket/prefix"),
        ("s3:///x", {}, "url is s3://bucket/prefix"),
        ("s3://a:b@bucket/x", {}, "contains credentials"),
        ("gs://bucket/x", {"access_key_id": SECRET}, "access_key_id is for s3:// URLs: use config for gs://"),
        (
            "s3://bucket/x",
            {"config": {"no_such_thing": SECRET}},
            "does not support for s3://: one of no_such_thing",
        ),
        ("s3://bucket/x", {"compression": "lzma"}, "is none, gzip or zstd, not 'lzma'"),
        ("s3://bucket/x", {"files": "avro"}, "files is 'avro', but must be jsonl or parquet"),
        ("s3://bucket/x", {"files": "parquet", "format": "debezium"}, "remove format"),
        ("s3://bucket/x", {"format": "pretty"}, "set a JSON format"),
        ("s3://bucket/x", {"layout": "{schema}"}, "layout contains {schema} and {table}"),
        ("s3://bucket/x", {"layout": "{table}{"}, "layout contains {schema} and {table}"),
        ("s3://bucket/x", {"layout": "_aiorepl/{schema}/{table}"}, "begins with _aiorepl, which is reserved"),
        ("s3://bucket/x", {"layout": "Messages/{schema}/{table}"}, "begins with Messages, which is reserved"),
        ("s3://bucket/x", {"layout": "../{schema}/{table}"}, "without empty parts, . and .."),
        ("s3://bucket/x", {"layout": "{schema}/./{table}"}, "without empty parts, . and .."),
        ("s3://bucket/x", {"layout": "{schema}/{table}/.."}, "without empty parts, . and .."),
        ("s3://bucket/x", {"layout": "{schema}//{table}"}, "without empty parts"),
        ("s3://bucket/x", {"layout": "/{schema}/{table}"}, "without empty parts"),
        ("s3://bucket/x", {"layout": "x\\{schema}/{table}"}, "without empty parts"),
        ("s3://bucket/x", {"layout": "{schema}{table}"}, "two tables into one folder"),
        ("s3://bucket/x", {"layout": "{schema}-_{table}"}, "two tables into one folder"),
        ("s3://bucket/x", {"layout": "{schema}/{table:.3}"}, "write it as {schema}"),
        ("s3://bucket/x", {"layout": "{schema}/{table!r}"}, "write it as {schema}"),
        ("s3://bucket/x", {"object_bytes": 1 << 40}, "object_bytes is above 0 and at most spill_bytes"),
    ],
)
def test_mistakes(url, options, says):
    """Errors are raised by the constructor, without secrets."""
    with pytest.raises(ConfigurationError) as refused:
        S3Sink(url, **options)
    assert says in str(refused.value)
    assert SECRET not in str(refused.value)


def test_dead_letters_of_another_sink(bucket, read, source):
    """Slices of which some are left out are taken as they are."""
    refusal = Rejection("other", "PermanentError", "no", "write", datetime.now(UTC))
    parts = source.parts([1, 2, 3])
    sink = bucket.sink()
    sink.open(SinkContext("s", source.context.position))
    sink.write(Batch(tuple(part for batch in parts[1:2] for part in batch.slices), refusal))
    sink.flush()
    sink.close()

    assert 1 == len(read.lines(bucket, read.listed(bucket)))


@pytest.mark.parametrize("files", ["jsonl", "parquet"])
def test_parts_go_up_while_the_rest_is_made(bucket, layer, read, life, source, files):
    """A part that is answered too late, or twice, is sent again; the object is whole, and nothing is left."""
    layer.faults += [
        read.Fault("PUT", "partNumber=1&", status=503, times=2),
        read.Fault("PUT", "partNumber=2&", lost=True),
    ]
    dice = random.Random(1)
    notes = [dice.randbytes(500_000).hex() for _ in range(12)]
    source.stream.transaction(*(source.table.insert(str(number), note) for number, note in enumerate(notes)))
    sink = bucket.sink(endpoint=layer.endpoint, files=files, compression="none", memory_bytes=1 << 20)
    life(sink, source, Batch(tuple(source.stream.slices())))

    (name,) = read.listed(bucket)
    assert [3, 2, 1] == [sum(f"partNumber={n}&" in path for _, path in layer.requests) for n in (1, 2, 3)]
    events = read.lines(bucket, [name]) if files == "jsonl" else read.rows(bucket, [name])
    assert notes == [event["note"] if files == "parquet" else event["new"]["note"] for event in events]
    assert [] == bucket.uploads()


def test_a_part_that_is_refused_for_long(bucket, layer, read, source):
    """The error is transient; the same flush makes the object again, whatever its size."""
    sink = bucket.sink(endpoint=layer.endpoint, compression="none", memory_bytes=1 << 20)
    sink.open(source.context)
    sink.write(source.batch(list(range(20)), note="x" * 1_000_000))
    layer.faults.append(read.Fault("PUT", "partNumber=3&", status=503, times=1000))
    for _ in range(2):
        with pytest.raises(TransientError, match="writing: the store replied 503 SlowDown"):
            sink.flush()
        assert [] == bucket.uploads()
        assert [] == read.data(bucket)

    layer.faults.clear()
    sink.flush()
    sink.close()
    assert list(range(20)) == [event["new"]["id"] for event in read.lines(bucket, read.listed(bucket))]


def test_an_upload_that_nobody_could_abort(bucket, layer, read, source):
    """An upload that could not be aborted is aborted after the object was written."""
    sink = bucket.sink(endpoint=layer.endpoint, compression="none")
    sink.open(source.context)
    sink.write(source.batch(list(range(20)), note="x" * 1_000_000))
    layer.faults += [
        read.Fault("PUT", "partNumber=2&", status=400, code="InvalidRequest"),
        read.Fault("DELETE", "uploadId=", status=403, code="AccessDenied"),
    ]
    with pytest.raises(PermanentError):
        sink.flush()
    assert 1 == len(bucket.uploads())

    sink.flush()
    sink.close()
    assert [] == bucket.uploads()
    assert 20 == len(read.lines(bucket, read.listed(bucket)))


def test_uploads_that_may_not_be_listed(bucket, layer, read, source, caplog):
    """The bucket's lifecycle has to abort them, and the log says so without a signature."""
    sink = bucket.sink(endpoint=layer.endpoint, compression="none")
    sink.open(source.context)
    sink.write(source.batch(list(range(20)), note="x" * 1_000_000))
    layer.faults += [
        read.Fault("PUT", "partNumber=2&", status=400, code="InvalidRequest"),
        read.Fault("GET", "uploads=", status=403, code="AccessDenied"),
    ]
    with pytest.raises(PermanentError):
        sink.flush()
    sink.flush()
    sink.close()

    (said,) = [record.getMessage() for record in caplog.records if record.name == "aiorepl.storage.objects"]
    assert "unfinished multipart uploads may remain in the bucket (HTTPError)" in said
    assert "Signature" not in said
    assert 20 == len(read.lines(bucket, read.listed(bucket)))


def test_a_completion_whose_answer_was_lost(bucket, layer, moto, read, source):
    """If the answer to a completion was lost, the object is written again."""
    sink = bucket.sink(endpoint=layer.endpoint, compression="none")
    sink.open(source.context)
    sink.write(source.batch(list(range(12)), note="x" * 1_000_000))
    layer.faults.append(read.Fault("POST", "uploadId=", lost=True))
    if moto:  # which completes an upload a second time
        layer.faults.append(read.Fault("POST", "uploadId=", status=404, code="NoSuchUpload"))
    with pytest.raises(TransientError, match="the multipart upload no longer exists"):
        sink.flush()
    sink.flush()
    sink.close()

    assert list(range(12)) == [event["new"]["id"] for event in read.lines(bucket, read.data(bucket))]
