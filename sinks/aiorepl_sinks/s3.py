"""``s3``: events as objects in S3, Google Cloud Storage or Azure, or as files in a folder, under a manifest.

::

    schema=public/table=orders/date=2026-11-21/0000000001A2B3C4-0000000000-00000001-00000001.jsonl.zst
    messages/…                        logical decoding messages
    _aiorepl/manifest/…               which objects count, and the position

An object's name consists of the commit LSN and ordinal of its first event, the epoch of its writer and that writer's count of
objects. The date is the commit's, in UTC. A flush writes objects and then one entry of the manifest, which lists them and holds
the position. ``flush_seconds`` (default 60) and ``flush_bytes`` in ``[sinks.batches]`` limit the age and size of an entry; each
flush makes at least one object for each table with changes.

Guarantee: exactly once, and whole transactions, for readers of the manifest. Readers that list the folders see each event once
as well, but also objects that are not in the manifest yet. After a crash these are deleted, and their events are delivered again.

See ``docs/reference/sinks/s3.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from aiorepl import ConfigurationError
from aiorepl.checked import checked
from aiorepl.formats import Values
from aiorepl.sizes import Size, size_of
from aiorepl.storage.objects.location import SCHEMES
from aiorepl_sinks.objects.encodings import Encoding, JsonLinesEncoding, ParquetEncoding
from aiorepl_sinks.objects.folder import Folder
from aiorepl_sinks.objects.manifest import LAYOUT
from aiorepl_sinks.objects.sink import ObjectSink
from aiorepl_sinks.objects.store import Objects, RemoteObjects


@checked("s3", zero=("memory_bytes",))
class S3Sink(ObjectSink):
    """Options:

    :param url: ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix`` or ``file:///folder``. Only one
        sink of one slot may use a prefix.
    :param files: ``"jsonl"``, one event per line, or ``"parquet"``, rows in typed columns (see ``parquet``).
    :param compression: ``"zstd"``, ``"gzip"`` or ``"none"``; for Parquet also ``"snappy"``, ``"lz4"`` and ``"brotli"``.
    :param format: for JSON lines: ``"native"``, ``"debezium"``, ``"cloudevents"`` or ``"wal2json"``, as for ``stdout``.
    :param values: for JSON lines: ``"typed"`` or ``"text"``, as for ``stdout``.
    :param layout: a template for the folders of tables' objects. It may name the date's folder differently, for tables that
        have a column ``date``.
    :param object_bytes: the largest size of an object, in memory and uncompressed.
    :param memory_bytes: the memory for unfinished objects; the rest is in the spool. Also the largest size of a row group of
        Parquet, in memory and uncompressed.
    :param spill_dir: the spool's folder; the system's temporary folder by default. The spool is an unnamed file.
    :param spill_bytes: the largest size of all unfinished objects together; beyond it the largest are finished early.
    :param endpoint: the URL of a compatible store that is not Amazon's, Google's or Azure's, such as
        ``http://localhost:9000``.
    :param region: the bucket's region.
    :param access_key_id: an access key of S3, with ``secret_access_key``. By default credentials come from the environment
        (``AWS_ACCESS_KEY_ID`` …) or the machine's role.
    :param secret_access_key: the secret of ``access_key_id``.
    :param session_token: the session token of temporary credentials of S3.
    :param config: other keys of obstore's configuration, such as Azure's ``account_name`` and ``account_key``, or Google's
        ``service_account`` (a file).
    """

    def __init__(
        self,
        url: str,
        *,
        files: Literal["jsonl", "parquet"] = "jsonl",
        compression: str = "zstd",
        format: str | Mapping[str, Any] = "native",  # noqa: A002 - the option's name
        values: Values = "typed",
        layout: str = LAYOUT,
        object_bytes: Size = 128 * 1024 * 1024,
        memory_bytes: Size = 4 * 1024 * 1024,
        spill_dir: str | Path | None = None,
        spill_bytes: Size = 1024 * 1024 * 1024,
        endpoint: str | None = None,
        region: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        memory_bytes = size_of("s3: memory_bytes", memory_bytes)
        options = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
        }
        settings = {name: value for name, value in options.items() if value is not None}
        super().__init__(
            _store(url, settings, config or {}),
            _encoding(files, compression, format, values, memory_bytes),
            layout=layout,
            object_bytes=size_of("s3: object_bytes", object_bytes),
            memory_bytes=memory_bytes,
            spill_dir=spill_dir,
            spill_bytes=size_of("s3: spill_bytes", spill_bytes),
        )


def _store(url: str, settings: Mapping[str, str], config: Mapping[str, str]) -> Objects:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Folder(Path(unquote(parts.path)))
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise ConfigurationError(
            "s3: url is s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder"
        )
    if parts.username or parts.password or parts.query:
        raise ConfigurationError("s3: url contains credentials or a query: set them as options")
    s3_only = [name for name in settings if name != "endpoint"]
    if s3_only and not parts.scheme.startswith("s3"):
        raise ConfigurationError(
            f"s3: {', '.join(s3_only)} is for s3:// URLs: use config for {parts.scheme}://"
        )
    if parts.scheme == "gs" and "endpoint" in settings:
        settings = {"base_url": settings["endpoint"]}
    return RemoteObjects(url, {**config, **settings})


def _encoding(
    files: Literal["jsonl", "parquet"],
    compression: str,
    format: str | Mapping[str, Any],  # noqa: A002
    values: Values,
    memory_bytes: int,
) -> Encoding:
    if files == "jsonl":
        return JsonLinesEncoding(format, values, compression)
    if format != "native" or values != "typed":
        raise ConfigurationError("s3: Parquet has typed columns: remove format and values")
    return ParquetEncoding(compression, memory_bytes)
