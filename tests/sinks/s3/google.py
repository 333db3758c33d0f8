"""The XML API of Google Cloud Storage, in front of an S3 server.

There is no emulator of it that knows conditional writes and multipart uploads of this API. It is S3's with other headers
and another login: ``Google`` verifies the tokens of a service account, and translates the requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

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
        # Google's client also encodes hyphens, and moto does not decode a bucket's name.
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
