"""A journal's files in an object store, over HTTP: S3Proxy and Azurite."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
import threading
import time
from functools import partial

import pytest

from aiorepl.durable import ObjectStoreError
from aiorepl.errors import ConfigurationError, JournalError
from aiorepl.storage import remote
from aiorepl.storage.objects import client
from aiorepl.storage.objects.location import ObjectStore
from aiorepl.storage.remote import RemoteStore
from aiorepl.storage.store import Superseded

SECRET = "test-secret"


@pytest.fixture
def store(object_store) -> RemoteStore:
    """The store of a journal in it."""
    return RemoteStore(object_store.location())


@pytest.fixture
def faulty(bucket, layer) -> RemoteStore:
    """The store by way of the layer that injects faults."""
    return RemoteStore(bucket.location(endpoint=layer.endpoint))


@pytest.fixture
def faulty_soon(bucket, layer, monkeypatch) -> RemoteStore:
    """As ``faulty``, with a time-out of half a second."""
    monkeypatch.setattr(client, "REQUEST_SECONDS", 0.5)
    return RemoteStore(bucket.location(endpoint=layer.endpoint))


def test_files(store, object_store):
    """Files are read as they were written, whole, in ranges and past their ends; listings are of one folder."""
    store.write("position.json", b"0123456789")
    store.write("cursors/a%2Fb.json", b"x")
    assert (b"0123456789", b"345", b"9", b"789") == (
        store.read("position.json"),
        store.read("position.json", 3, 3),
        store.read("position.json", 9, 5),
        store.read("position.json", 7),
    )
    assert b"" == store.read("position.json", 10, 5)
    assert ["position.json"] == [name for name in store.names() if not name.startswith(".")]
    assert ["a%2Fb.json"] == store.names("cursors")
    assert [] == store.names("manifests")
    size, written = store.about("position.json")
    assert 10 == size
    assert abs(time.time() - written) < 3600

    store.delete("position.json")
    store.delete("position.json")
    for call in (store.read, store.about, store.load):
        with pytest.raises(FileNotFoundError):
            call("position.json")


def test_compare_and_swap(store):
    """Of two replacements of one version, the second is refused; so is the creation of a file that exists."""
    first = store.replace("position.json", b"1", None)
    with pytest.raises(Superseded):
        store.replace("position.json", b"other", None)
    second = store.replace("position.json", b"2", first)
    with pytest.raises(Superseded):
        store.replace("position.json", b"other", first)
    assert (b"2", second) == store.load("position.json")
    # The same content is what the caller wants.
    assert second == store.replace("position.json", b"2", first)
    store.delete("position.json")
    with pytest.raises(Superseded):
        store.replace("position.json", b"3", second)


def test_a_store_that_compares(store):
    """The writer's check passes, also the second time."""
    store.lock()
    store.lock()
    store.unlock()


@pytest.mark.parametrize("accepted", [1, 2], ids=["if-match", "if-none-match"])
def test_a_store_that_ignores_conditions(faulty, layer, fault, accepted):
    """The writer refuses a store that would let two writers in."""
    if accepted == 1:
        layer.faults.append(fault("PUT", "conditional", status=412, code="PreconditionFailed"))
    layer.faults.append(fault("PUT", "conditional", status=200, times=accepted))
    with pytest.raises(JournalError, match="ignores the conditions of writes"):
        faulty.lock()


@pytest.mark.parametrize("version", [False, True], ids=["create", "replace"])
def test_a_lost_answer(faulty, layer, fault, version):
    """A replacement whose answer was lost has succeeded."""
    before = faulty.replace("position.json", b"0", None) if version else None
    layer.faults.append(fault("PUT", "position.json", lost=True))
    after = faulty.replace("position.json", b"1", before)
    assert (b"1", after) == faulty.load("position.json")


def test_a_replacement_after_one_that_was_never_answered(faulty, layer, fault):
    """The version that an unanswered replacement has made is the caller's own, and can be replaced."""
    before = faulty.replace("position.json", b"0", None)
    layer.faults.append(fault("PUT", "position.json", lost=True))
    layer.faults.append(fault("PUT", "position.json", status=503, times=100))
    with pytest.raises(ObjectStoreError) as failed:
        faulty.replace("position.json", b"1", before)
    assert failed.value.transient
    layer.faults.clear()
    faulty.replace("position.json", b"2", before)
    assert b"2" == faulty.read("position.json")


def test_a_replacement_that_another_made_meanwhile(faulty, layer, fault, bucket):
    """A lost answer does not hide that another process has replaced the file since."""
    before = faulty.replace("position.json", b"0", None)
    other = RemoteStore(bucket.location())
    layer.faults.append(
        fault("PUT", "position.json", lost=True, meanwhile=lambda: other.write("position.json", b"2"))
    )
    with pytest.raises(Superseded):
        faulty.replace("position.json", b"1", before)
    assert b"2" == faulty.read("position.json")


@pytest.mark.parametrize("size", [2, 24], ids=["small", "large"])
def test_uploads(store, size):
    """An upload is invisible until it is published, whatever its size, and publishing again does nothing."""
    parts = [os.urandom(500_000) for _ in range(size)]
    upload = store.create("a.segment")
    for part in parts:
        upload.write([part, bytearray(part)])
    assert "a.segment" not in store.names()
    upload.publish("a.segment")
    upload.discard()
    upload.publish("a.segment")
    assert b"".join(part * 2 for part in parts) == store.read("a.segment")


@pytest.mark.parametrize(
    "faults",
    [
        [("PUT", "partNumber=1&", {"status": 503, "times": 2})],
        [("PUT", "partNumber=2&", {"status": 400, "code": "InvalidRequest"})],
        [("PUT", "partNumber=3&", {"lost": True})],
        [("POST", "uploadId=", {"lost": True})],
        [("POST", "uploadId=", {"status": 404, "code": "NoSuchUpload"})],
    ],
    ids=["busy", "refused", "lost", "completed and lost", "aborted by another"],
)
@pytest.mark.by_day
def test_uploads_that_fail(faulty, layer, fault, bucket, faults):
    """An upload whose sending failed is sent again when it is published; no part remains."""
    layer.faults += [fault(method, path, **options) for method, path, options in faults]
    parts = [os.urandom(1_000_000) for _ in range(16)]
    upload = faulty.create("a.segment")
    for part in parts:
        upload.write([part])
    upload.publish("a.segment")
    upload.discard()
    assert b"".join(parts) == faulty.read("a.segment")
    assert [] == bucket.uploads()


def test_an_upload_that_is_discarded(faulty, bucket, layer, fault):
    """Neither the object nor a part of it remains, even if the store is busy for a moment."""
    layer.faults += [fault("GET", "uploads", status=503), fault("DELETE", "uploadId", status=500)]
    upload = faulty.create("a.segment")
    for _ in range(12):
        upload.write([os.urandom(1_000_000)])
    upload.discard()
    assert ([], []) == (faulty.names(), bucket.uploads())


def test_a_full_disk_under_an_upload(store, monkeypatch, tmp_path):
    """A write that found no room can be repeated; the staged file has no name."""
    monkeypatch.setattr(remote, "MEMORY_BYTES", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write, failures = remote._write, [1, 2]

    def full(file, offset, parts):
        if failures and failures[-1] == len(parts):
            failures.pop()
            write(file, offset, parts[:-1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(file, offset, parts)

    monkeypatch.setattr(remote, "_write", full)
    upload = store.create("a.segment")
    upload.write([b"in memory "])
    for part in (b"staged ", b"more"):
        with pytest.raises(OSError, match="No space") as failed:
            upload.write([part])
        assert errno.ENOSPC == failed.value.errno
        upload.write([part])
    assert [] == list(tmp_path.iterdir())
    upload.publish("a.segment")
    upload.discard()
    assert b"in memory staged more" == store.read("a.segment")


def test_remains_of_uploads(faulty, layer, fault, bucket, monkeypatch):
    """``clean`` aborts the multipart uploads that a killed writer has left."""
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="some/prefix/a.segment")
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key="elsewhere/a.segment")
    faulty.clean()
    assert ["elsewhere/a.segment"] == [upload["Key"] for upload in bucket.uploads()]


@pytest.mark.parametrize(
    ("status", "code", "says", "transient"),
    [
        (503, "SlowDown", "the store replied 503 SlowDown", True),
        (400, "RequestTimeout", "the store replied 400 RequestTimeout", True),
        (403, "AccessDenied", "the credentials lack a permission", False),
        (400, "ExpiredToken", "the session token has expired.* set new credentials", False),
        (403, "AuthenticationFailed", "the token has expired: correct account_name", False),
    ],
)
def test_errors(faulty, layer, fault, status, code, says, transient):
    """An error says what to do and whether a repetition may help, without secrets."""
    layer.faults.append(fault("GET|PUT", "", status=status, code=code, times=100))
    for call in (lambda: faulty.read("position.json"), lambda: faulty.write("position.json", b"")):
        with pytest.raises(ObjectStoreError, match=says) as failed:
            call()
        assert transient == failed.value.transient
        assert SECRET not in f"{failed.value!r} {faulty!r}"


def test_a_store_in_another_process():
    """A store is pickled with its configuration, which Spark's executors need, and shows it nowhere."""
    location = ObjectStore(
        "s3://bucket/journal/", {"access_key_id": "a", "secret_access_key": SECRET, "region": "us-east-1"}
    )
    store = pickle.loads(pickle.dumps(RemoteStore(location)))
    assert "s3://bucket/journal" == store.url == str(location)
    assert SECRET not in f"{location!r} {location} {store!r} {store.__dict__}"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://bucket/x", "not that of an object store"),
        ("s3:///x", "not that of an object store"),
        ("s3://a:b@bucket/x", "contains credentials"),
    ],
)
def test_mistakes(url, says):
    """A wrong URL is refused by the constructor."""
    with pytest.raises(ConfigurationError, match=says):
        ObjectStore(url)


def test_a_request_that_arrives_late(faulty_soon, layer, fault):
    """A conditional write that timed out, and arrives after its repetition, changes nothing."""
    held = threading.Event()
    before = faulty_soon.replace("position.json", b"0", None)
    layer.faults.append(fault("PUT", "position.json", meanwhile=partial(held.wait, 60)))
    with pytest.raises(ObjectStoreError, match="no answer") as failed:
        faulty_soon.replace("position.json", b"1", before)
    assert failed.value.transient
    after = faulty_soon.replace("position.json", b"1", before)
    after = faulty_soon.replace("position.json", b"2", after)
    answered = layer.answered
    held.set()
    while layer.answered == answered:
        time.sleep(0.01)
    assert (b"2", after) == faulty_soon.load("position.json")
