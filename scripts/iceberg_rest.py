"""An Iceberg REST catalog of one process, for ``make extras``: pyiceberg's catalog in a file, behind the paths that pyiceberg calls."""

# ruff: noqa: INP001 - for programs

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

STATUS = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A catalog with its tables in a folder, until the block ends. Yields its URL."""
    catalog = SqlCatalog("rest", uri=f"sqlite:///{folder}/rest", warehouse=f"file://{folder}/rest-warehouse")
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        do_HEAD = do_POST = do_GET  # noqa: N815 - names that http.server calls

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            path = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")][1:]
            try:
                with one_at_a_time:
                    status, answer = 200, answered(catalog, self.command, path, body)
            except tuple(STATUS) as error:
                status = STATUS[type(error)]
                answer = {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
            sent = b"" if self.command == "HEAD" else json.dumps(answer).encode()
            self.send_response(status if sent or status != 200 else 204)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def answered(catalog: SqlCatalog, method: str, path: list[str], body: bytes) -> dict[str, Any]:
    """Return the answer to a request; the paths are those of Iceberg's REST specification, without ``v1``."""
    match method, path:
        case _, ["config"]:
            return {"defaults": {}, "overrides": {}}
        case "POST", ["namespaces"]:
            catalog.create_namespace(tuple(json.loads(body)["namespace"]))
            return json.loads(body)
        case _, ["namespaces", namespace]:
            return {"namespace": [namespace], "properties": catalog.load_namespace_properties(namespace)}
        case "POST", ["namespaces", namespace, "tables"]:
            wanted = json.loads(body)
            create = catalog._create_staged_table if wanted.get("stage-create") else catalog.create_table
            schema = Schema.model_validate(wanted["schema"])
            return described(create((namespace, wanted["name"]), schema, properties=wanted["properties"]))
        case "POST", ["namespaces", namespace, "tables", name]:
            commit = CommitTableRequest.model_validate_json(body)
            table = SimpleNamespace(name=lambda: (namespace, name))
            return described(catalog.commit_table(table, commit.requirements, commit.updates))  # type: ignore[arg-type]
        case _, ["namespaces", namespace, "tables", name]:
            return described(catalog.load_table((namespace, name)))
    raise NoSuchTableError(f"{method} {'/'.join(path)}")


def described(table: Any) -> dict[str, Any]:
    """Return a table as the specification describes one."""
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
