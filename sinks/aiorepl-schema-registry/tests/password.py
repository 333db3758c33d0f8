"""A web server before the registry that asks for a password."""

from __future__ import annotations

import base64
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSWORD = "s3cr3t-password"


@contextmanager
def server(target):
    """A web server before the registry, which asks for a password and can fail."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self):
            proxy.requests += 1
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))) or None
            expected = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
            if self.path != "/token" and self.headers.get("Authorization") != f"Basic {expected}":
                self.answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
            elif self.path == "/token":
                self.answer(400, b'{"error": "no", "error_description": "%b"}' % PASSWORD.encode())
            elif proxy.status is not None:
                self.answer(proxy.status, b'{"error_code": %d, "message": "no"}' % proxy.status)
            else:
                kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                request = urllib.request.Request(target + self.path, body, kind, method=self.command)
                try:
                    with urllib.request.urlopen(request) as found:
                        self.answer(found.status, found.read())
                except urllib.error.HTTPError as error:
                    with error:
                        self.answer(error.code, error.read())

        do_GET = do_POST = handle_any  # noqa: N815 - the names of http.server

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            """Write nothing."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.requests, proxy.status = 0, None
    proxy.url = f"http://127.0.0.1:{proxy.server_port}"
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
