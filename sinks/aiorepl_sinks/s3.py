"""``s3``: events as objects in S3, Google Cloud Storage or Azure, or files, under a manifest.

::

    schema=public/table=orders/date=2026-11-21/0000000001A2B3C4-0000000000-00000001-00000001.jsonl.zst
    messages/…                        logical decoding messages
    _aiorepl/manifest/…               which objects count, and up to where the stream is in them

An object's name is its first event, commit LSN and ordinal, the number of the writer that made it, and a count of that
writer's objects. A flush writes objects and then one entry of the manifest, which lists them and holds the position. The
date is that of the commit, in UTC. ``[sinks.batches] flush_seconds`` (60 unless given) and ``flush_bytes`` say how old and how much what is in one entry
may become: each flush makes at least one object for each table that had changes.

Guarantee: exactly once for who reads the objects in the manifest, and whole transactions. Who lists the folders sees no
event twice, but may see objects that are not in the manifest yet, and which are deleted after a crash, when the same
events come again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from aiorepl import ConfigurationError
from aiorepl_sinks.objects.encodings import Encoding, JsonLinesEncoding, ParquetEncoding
from aiorepl_sinks.objects.folder import Folder
from aiorepl_sinks.objects.manifest import LAYOUT
from aiorepl_sinks.objects.sink import ObjectSink
from aiorepl_sinks.objects.store import RemoteStore, Store

_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


class S3Sink(ObjectSink):
    """Options:

    :param url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix`` or ``file:///folder``. A prefix
        belongs to one sink of one slot.
    :param files: ``"jsonl"``, events one a line, or ``"parquet"``, rows in typed columns (see ``parquet``).
    :param compression: ``"zstd"``, ``"gzip"`` or ``"none"``; of Parquet also ``"snappy"``, ``"lz4"`` and ``"brotli"``.
    :param format: of JSON lines: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: of JSON lines: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param layout: where a table's objects are. A table with a column ``date`` may want another name there.
    :param object_bytes: begin a new object before this much is in one, as it is in memory, uncompressed.
    :param memory_bytes: what of unfinished objects is kept in memory; the rest goes to ``spill_dir``. At most as much is in a
        row group of Parquet, as it is in memory, uncompressed.
    :param spill_dir: the folder for that, in a file that has no name there; the system's temporary folder unless given.
    :param spill_bytes: what all unfinished objects together may be; the largest are finished early.
    :param endpoint: of a store that has the API, but is not Amazon's, Google's or Azure's, like ``http://localhost:9000``.
    :param region: of the bucket.
    :param access_key_id: with ``secret_access_key``, and ``session_token`` if there is one. All of these come from the
        environment unless given (``AWS_ACCESS_KEY_ID`` …), or from the role of the machine.
    :param config: anything else that obstore knows for the store, as for Azure ``account_name`` and ``account_key``, for
        Google ``service_account``, a file.
    """

    def __init__(
        self,
        url: str,
        *,
        files: Literal["jsonl", "parquet"] = "jsonl",
        compression: str = "zstd",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: str = "typed",
        layout: str = LAYOUT,
        object_bytes: int = 128 * 1024 * 1024,
        memory_bytes: int = 4 * 1024 * 1024,
        spill_dir: str | Path | None = None,
        spill_bytes: int = 1024 * 1024 * 1024,
        endpoint: str | None = None,
        region: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        given = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        settings = {name: value for name, value in given.items() if value is not None}
        super().__init__(
            _store(url, settings, config or {}),
            _encoding(files, compression, format, values, memory_bytes),
            layout=layout,
            object_bytes=object_bytes,
            memory_bytes=memory_bytes,
            spill_dir=spill_dir,
            spill_bytes=spill_bytes,
        )


def _store(url: str, settings: Mapping[str, str], config: Mapping[str, str]) -> Store:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Folder(Path(unquote(parts.path)))
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise ConfigurationError(
            "s3: the URL is s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
        )
    if parts.username or parts.password or parts.query:
        raise ConfigurationError("s3: the URL holds no credentials and no query: give them as options")
    foreign = [name for name in settings if name != "endpoint"]
    if foreign and not parts.scheme.startswith("s3"):
        raise ConfigurationError(
            f"s3: {', '.join(foreign)}: for s3:// alone; for {parts.scheme}:// use config"
        )
    if parts.scheme == "gs" and "endpoint" in settings:
        settings = {"base_url": settings["endpoint"]}
    return RemoteStore(url, {**config, **settings})


def _encoding(
    files: str,
    compression: str,
    format: str | Mapping[str, Any],  # noqa: A002
    values: str,
    memory_bytes: int,
) -> Encoding:
    if files == "jsonl":
        return JsonLinesEncoding(format, values, compression)
    if files != "parquet":
        raise ConfigurationError(f"s3: there are no files of {files!r}: it is jsonl or parquet")
    if format != "native" or values != "typed":
        raise ConfigurationError("s3: Parquet has columns instead of a format: leave out format and values")
    return ParquetEncoding(compression, memory_bytes)
