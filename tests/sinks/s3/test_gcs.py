"""gs://: objects through the XML API of Google Cloud Storage, as far as it is that of S3.

There is no emulator of it that knows conditional writes and multipart uploads of this API. It is S3's with other headers
and another login: a layer in front of the tests' S3 server verifies the service account's tokens and translates.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from aiorepl import ObjectStore, PermanentError
from aiorepl.storage.remote import RemoteStore
from aiorepl.storage.store import Superseded
from aiorepl_sinks.s3 import S3Sink

pytestmark = pytest.mark.by_day

KEYS = Credentials("test", "test-secret")
ACCOUNT = "writer@tests.example"


def key():
    """A service account's key."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def service_account(private) -> str:
    """The file that Google makes for it."""
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    fields = {
        "client_email": ACCOUNT,
        "private_key_id": "1",
        "private_key": private.private_bytes(*form).decode(),
    }
    return json.dumps({"type": "service_account", **fields})


class Google:
    """The API, over HTTP."""

    def __init__(self, s3: str, public: rsa.RSAPublicKey) -> None:
        google, self.requests = self, []
        self._etags: dict[str, str] = {}
        self._public, self._s3 = public, s3

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                google.requests.append((self.command, self.path, dict(self.headers.items())))
                if google.lets_in(self.headers.get("authorization", "")):
                    status, headers, said = google.ask(
                        self.command, self.path, dict(self.headers.items()), body
                    )
                else:
                    status, headers = 401, {}
                    said = b"<?xml version='1.0'?><Error><Code>AuthenticationRequired</Code></Error>"
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                length = headers.get("content-length") if self.command == "HEAD" else None
                self.send_header("content-length", length or str(len(said)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else said)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

            def log_message(self, format, *arguments) -> None:  # noqa: A002
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def lets_in(self, authorization: str) -> bool:
        """Return whether the token is signed by the service account."""
        signed, _, signature = authorization.removeprefix("Bearer ").rpartition(".")
        try:
            claims = json.loads(base64.urlsafe_b64decode(signed.partition(".")[2] + "=="))
            self._public.verify(
                base64.urlsafe_b64decode(signature + "=="),
                signed.encode(),
                padding.PKCS1v15(),
                hashes.SHA256(),
            )
        except (ValueError, InvalidSignature):
            return False
        return claims["iss"] == ACCOUNT

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes):
        """Forward a request to the S3 server."""
        kept = {}
        for name, value in headers.items():
            match name.lower():
                case "x-goog-if-generation-match":
                    if value == "0":
                        kept["if-none-match"] = "*"
                    else:
                        kept["if-match"] = self._etags.get(value, '"unknown"')
                case "content-type" | "range":
                    kept[name] = value
        if method == "DELETE" and "uploadId=" not in path:
            status, *_ = self._ask("HEAD", path, {}, b"")
            if status == 404:
                return status, {}, b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>"
        return self._ask(method, path, kept, body)

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes):
        parts = urlsplit(path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        # Google's client encodes hyphens as well, which moto does not decode in a bucket's name.
        place = self._s3 + quote(unquote(parts.path))
        request = AWSRequest(method, place, headers=headers, data=body, params=query)
        S3SigV4Auth(KEYS, "s3", "us-east-1").add_auth(request)
        prepared = request.prepare()
        url = urlsplit(prepared.url)
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        try:
            connection.request(method, f"{url.path}?{url.query}", body, dict(prepared.headers.items()))
            answer = connection.getresponse()
            said = answer.read()
            passed = ("etag", "last-modified", "content-type", "content-range", "content-length")
            found = {name.lower(): value for name, value in answer.getheaders() if name.lower() in passed}
            if method != "HEAD":
                found.pop("content-length", None)
            generation = str(zlib.crc32(found.get("etag", "").encode()) + 2)
            self._etags[generation] = found.get("etag", "")
            return answer.status, found | {"x-goog-generation": generation}, said
        finally:
            connection.close()

    def stop(self) -> None:
        """No more requests."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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
