"""Objects keep the contract: on a local folder and through a real S3 API, as JSON lines and as Parquet."""

from __future__ import annotations

import pytest

from aiorepl.testing.conformance import SinkConformance, native_events
from aiorepl_sinks.s3 import S3


class TestFolderOfLines(SinkConformance):
    exactly_once = True
    atomic = True
    order = "table"

    @pytest.fixture(autouse=True)
    def target(self, tmp_path):
        self.folder = tmp_path

    def make_sink(self):
        return S3(self.folder.as_uri(), object_bytes=4000, memory_bytes=20000)

    def read(self):
        import orjson
        from backports import zstd

        lines = []
        for entry in sorted(self.folder.glob("_aiorepl/manifest/*.json")):
            for o in orjson.loads(entry.read_bytes())["objects"]:
                lines += zstd.decompress((self.folder / o["path"]).read_bytes()).splitlines()
        return native_events(lines)
