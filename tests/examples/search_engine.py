"""An HTTP server that behaves like Elasticsearch's bulk API."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SearchEngine:
    """Indexes by name: the version of each id and its document, which is ``None`` once deleted.

    :ivar refusals: statuses, by id, with which the next action on a document is answered instead.
    """

    def __init__(self) -> None:
        self.indexes: dict[str, dict[str, tuple[int, dict | None]]] = {}
        self.refusals: dict[str, int] = {}
        self.statuses: list[int] = []

    def documents(self, index: str) -> dict[str, dict]:
        """The documents of an index by id."""
        return {key: row for key, (_, row) in self.indexes.get(index, {}).items() if row is not None}

    def bulk(self, lines: Iterator[dict]) -> dict:
        """Execute the actions of a request, each by itself."""
        items = []
        for line in lines:
            ((action, meta),) = line.items()
            row = next(lines) if action == "index" else None
            status, error = self.act(meta, row)
            self.statuses.append(status)
            result = {"_id": meta["_id"], "status": status} | ({"error": {"type": error}} if error else {})
            items.append({action: result})
        return {
            "errors": any("error" in result for item in items for result in item.values()),
            "items": items,
        }

    def act(self, meta: dict, row: dict | None) -> tuple[int, str | None]:
        """Execute one action."""
        assert meta["version_type"] == "external_gte"
        assert 0 <= meta["version"] < 2**63, "a version is a long"
        key = meta["_id"]
        if status := self.refusals.pop(key, None):
            return status, "mapper_parsing_exception" if status == 400 else "es_rejected_execution_exception"
        index = self.indexes.setdefault(meta["_index"], {})
        version, before = index.get(key, (-1, None))
        if meta["version"] < version:
            return 409, "version_conflict_engine_exception"
        index[key] = (meta["version"], row)
        return (404 if row is None and before is None else 200), None


@contextlib.contextmanager
def search_engine() -> Iterator[SearchEngine]:
    """Run a search engine at ``engine.url``."""
    engine = SearchEngine()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, content: dict) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.path == "/_bulk"
            assert body.endswith(b"\n")
            self.answer(200, engine.bulk(map(json.loads, body.splitlines())))

        def do_DELETE(self) -> None:
            found = engine.indexes.pop(self.path.removeprefix("/"), None)
            self.answer(404 if found is None else 200, {})

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        engine.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield engine
        server.shutdown()
