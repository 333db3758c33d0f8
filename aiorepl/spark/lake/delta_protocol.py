"""Which Delta tables this package can write, and what a table's protocol must list. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa

from aiorepl.errors import ConfigurationError

VECTORS: Final = "delta.enableDeletionVectors"
_VECTORS, _NTZ = "deletionVectors", "timestampNtz"
# By version of the writer protocol, the features that the version implies.
_LEGACY: Final[Mapping[int, tuple[str, ...]]] = {
    2: ("appendOnly", "invariants"),
    3: ("checkConstraints",),
    4: ("changeDataFeed", "generatedColumns"),
    5: ("columnMapping",),
    6: ("identityColumns",),
}
# A table's protocol may list these features although nothing uses them. ``_used`` looks for a use.
_PASSIVE: Final[Mapping[str, str]] = {
    "appendOnly": "delta.appendOnly",
    "invariants": "delta.invariants",
    "checkConstraints": "delta.constraints.",
    "changeDataFeed": "delta.enableChangeDataFeed",
    "generatedColumns": "delta.generationExpression",
    "columnMapping": "delta.columnMapping.mode",
    "identityColumns": "delta.identity.",
    "inCommitTimestamp": "delta.enableInCommitTimestamps",
}
_KNOWN: Final = {
    _VECTORS,
    _NTZ,
    "domainMetadata",
    "clustering",
    "vacuumProtocolCheck",
    "variantType",
    *_PASSIVE,
}
_OFF: Final = (None, "", "none", "false")

Protocol = Mapping[str, Any]


def protocol_of(schema: pa.Schema, present: Protocol, *, vectors: bool) -> dict[str, Any]:
    """Return the protocol of a table with these columns.

    :param present: the table's present protocol; empty for a new table.
    :param vectors: whether the table has deletion vectors.
    """
    wanted = {_VECTORS} if vectors else set()
    if any(pa.types.is_timestamp(kind) and kind.tz is None for kind in _leaves(schema)):
        wanted.add(_NTZ)
    if not present:
        present = {"minReaderVersion": 1, "minWriterVersion": 2}
    reader, writer = features(present)
    if wanted <= reader and wanted <= writer:
        return dict(present)
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted(reader | wanted),
        "writerFeatures": sorted(writer | wanted),
    }


def features(protocol: Protocol) -> tuple[set[str], set[str]]:
    """Return the features that a reader needs, and the features that a writer needs."""
    writer, reader = int(protocol["minWriterVersion"]), int(protocol["minReaderVersion"])
    implied = {name for version, names in _LEGACY.items() if version <= writer < 7 for name in names}
    read = {"columnMapping"} if reader == 2 else set()
    return (
        read | set(protocol.get("readerFeatures") or ()),
        implied | set(protocol.get("writerFeatures") or ()),
    )


def has_vectors(configuration: Mapping[str, str]) -> bool:
    """Whether a table's property enables deletion vectors."""
    return configuration.get(VECTORS) == "true"


def require_writable(target: str, protocol: Protocol, metadata: Mapping[str, Any]) -> None:
    """Check that this package knows everything that a writer of the table must do.

    :raises ConfigurationError: the table has another feature, which the text names.
    """
    reader, writer = features(protocol)
    used = sorted({*(reader | writer) - _KNOWN, *_used(writer, metadata)})
    if used:
        raise ConfigurationError(
            f"the Delta table {target} has the feature {used[0]}, which a mirror cannot write: drop that feature, or choose another target"
        )


def _used(names: Collection[str], metadata: Mapping[str, Any]) -> set[str]:
    configuration, columns = dict(metadata.get("configuration") or {}), str(metadata["schemaString"])
    found = set()
    for name in names:
        marker = _PASSIVE.get(name)
        if marker is not None and (
            any(key.startswith(marker) and value not in _OFF for key, value in configuration.items())
            or f'"{marker}' in columns
        ):
            found.add(name)
    return found


def _leaves(schema: Any) -> list[pa.DataType]:
    found: list[pa.DataType] = []
    for each in schema:
        kind = each.type
        if pa.types.is_struct(kind):
            found += _leaves(kind)
        elif pa.types.is_list(kind):
            found += _leaves([kind.value_field])
        else:
            found.append(kind)
    return found
