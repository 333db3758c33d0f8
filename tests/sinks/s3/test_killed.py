"""SIGKILL at every request of a process, before the server has done it and after; and readers beside it."""

from __future__ import annotations

import json
import threading
from asyncio.subprocess import DEVNULL
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("worker.py")
LARGE = Path(__file__).with_name("large.py")
IMPORTS = ["aiorepl_sinks.s3"]


def stream():
    """The changes that the worker delivers."""
    spec = spec_from_file_location("s3_worker", WORKER)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.told()


EXPECTED = {
    (str(change.transaction.commit_lsn), change.ordinal)
    for part in stream().again()
    for change in part.changes
}


class Life:
    """A process that can be killed from the layer between it and the server."""

    def __init__(self, fork_server, bucket, layer, seed: int) -> None:
        options = {
            "url": bucket.url,
            "endpoint": layer.endpoint,
            "access_key_id": "test",
            "secret_access_key": "test-secret",
            "region": "us-east-1",
            "object_bytes": 20_000,
            "memory_bytes": 10_000,
            "spill_bytes": 60_000,
        }
        self.process = fork_server.popen(WORKER, json.dumps(options), seed, imports=IMPORTS)

    def kill(self) -> None:
        """Kill the writer, and wait until it has ended."""
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(200)


def once(read, bucket, names) -> set[tuple[str, int]]:
    """Return the events, and check that each is there once."""
    found = read.identities(read.lines(bucket, names))
    assert len(set(found)) == len(found)
    return set(found)


@pytest.mark.parametrize("lost", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("path", "nth"),
    [("writers/", 1), ("writers/", 2), ("writers/", 3), ("manifest/", 1), ("manifest/", 2), ("manifest/", 3)]
    + [("schema", nth) for nth in (1, 2, 3, 8)],
)
@pytest.mark.by_day
def test_killed_at_a_write(fork_server, bucket, layer, read, path, nth, lost):
    """No event is visible twice at any time; the next process completes the stream."""
    lives: list[Life] = []

    def kill() -> None:
        lives[0].kill()

    passing = read.Fault("PUT", path, times=nth - 1)
    deadly = read.Fault("PUT", path, lost=lost, meanwhile=kill)
    layer.faults += [passing, deadly]
    lives.append(Life(fork_server, bucket, layer, seed=20 + nth))
    assert lives[0].wait() == -9
    assert deadly.hits == 1

    for names in (read.listed(bucket), read.data(bucket)):
        assert once(read, bucket, names) <= EXPECTED

    layer.faults.clear()
    assert Life(fork_server, bucket, layer, seed=100 + nth).wait() == 0
    for names in (read.listed(bucket), read.data(bucket)):
        assert once(read, bucket, names) == EXPECTED


@pytest.mark.parametrize("lost", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("method", "path"), [("PUT", "partNumber=3&"), ("POST", "uploadId=")])
@pytest.mark.by_day
def test_killed_in_the_middle_of_an_upload(fork_server, bucket, layer, read, monkeypatch, method, path, lost):
    """The next process aborts the parts of this upload, and of no other."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", layer.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    others = ["some/prefix-2/schema=public/x.jsonl", "some/prefix/schema=public/table=t0/x.jsonl"]
    for key in others:
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)
    lives: list[Any] = []

    def live() -> Any:
        arguments = ("jsonl", 1, 12_000, "compression=none")
        return fork_server.popen(LARGE, bucket.url, *arguments, stdout=DEVNULL, imports=IMPORTS)

    def kill() -> None:
        lives[0].kill()
        lives[0].wait()
        if not lost:
            raise ConnectionError("the server does not get the request")

    deadly = read.Fault(method, path, lost=lost, meanwhile=kill)
    layer.faults.append(deadly)
    lives.append(live())
    assert lives[0].wait(60) == -9
    assert deadly.hits == 1
    layer.settle()
    completed = method == "POST" and lost
    assert len(bucket.uploads()) == len(others) + (not completed)
    assert read.listed(bucket) == []

    assert live().wait(60) == 0
    assert sorted(upload["Key"] for upload in bucket.uploads()) == others
    (name,) = read.listed(bucket)
    # S3Proxy keeps an object for each upload, too.
    assert [found for found in read.data(bucket) if found.startswith("schema")] == [name]
    assert [event["ordinal"] for event in read.lines(bucket, [name])] == list(range(12_000))


def test_readers_beside_the_writer(fork_server, bucket, layer, read):
    """A reader of the manifest sees more whole transactions each time, and nothing twice."""
    wholes: list[set[tuple[str, int]]] = [set()]
    for part in stream().again():
        wholes.append(
            wholes[-1] | {(str(change.transaction.commit_lsn), change.ordinal) for change in part.changes}
        )
    seen: list[set[tuple[str, int]]] = []
    problems: list[BaseException] = []
    ended = threading.Event()
    lives: list[Life] = []

    def kill() -> None:
        lives[0].kill()

    def reader() -> None:
        try:
            while not ended.is_set():
                seen.append(once(read, bucket, read.listed(bucket)))
        except BaseException as error:  # noqa: BLE001 - told to the test
            problems.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        layer.faults += [
            read.Fault("PUT", "manifest/", times=3),
            read.Fault("PUT", "manifest/", meanwhile=kill),
        ]
        lives.append(Life(fork_server, bucket, layer, seed=7))
        assert lives[0].wait() == -9
        assert Life(fork_server, bucket, layer, seed=8).wait() == 0
    finally:
        ended.set()
        thread.join()

    assert problems == []
    assert all(found in wholes for found in seen)
    assert all(earlier <= later for earlier, later in pairwise(seen))
    assert once(read, bucket, read.listed(bucket)) == EXPECTED
