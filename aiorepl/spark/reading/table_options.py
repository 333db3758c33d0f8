"""The options of ``CREATE TABLE … USING aiorepl OPTIONS (…)``.

Spark passes a table's options to a Python data source when the table is created, but not when it is read. Spark does keep the
table's schema. So the options are stored in the metadata of the schema's column ``_op``. The catalog shows options and schema
to its users, so a table's options have no credentials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructField, StructType

from aiorepl.errors import ConfigurationError

_OPTIONS: Final = "aiorepl.options"
# The column whose metadata has the options: in the changes of one table, and of all tables.
_COLUMNS: Final = ("_op", "op")
_REPEATED: Final = "option."
_CONFIG: Final = "config."


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with the options of a table that is being created. Return any other schema unchanged.

    :raises ConfigurationError: the options configure an object store.
    """
    if not any(name.lower().startswith(_REPEATED) for name in options):
        return schema
    own = [name[len(_REPEATED) :] for name in options if name.lower().startswith(_REPEATED)]
    if any(name.lower().startswith(_CONFIG) for name in own):
        raise ConfigurationError(
            "a table keeps its options in the catalog, so it cannot have config.…: configure the object store in the "
            "environment of driver and executors"
        )
    kept = {name: options[name] for name in own}
    return _with_metadata(schema, {_OPTIONS: json.dumps(kept)})


def without_options(schema: StructType, options: Mapping[str, str]) -> tuple[StructType, Mapping[str, str]]:
    """Return the schema without the stored options, and the stored options merged with the query's.

    :raises ConfigurationError: the table's options were not stored, and the query gives none.
    """
    for field in schema.fields:
        if (text := (field.metadata or {}).get(_OPTIONS)) is not None:
            return _with_metadata(schema, {}), CaseInsensitiveDict({**json.loads(text), **options})
    if not (options.get("journal") or options.get("path")):
        raise ConfigurationError(
            "option journal is missing. If this is a table that was created with a list of columns, Spark does not pass its "
            "options on. Create it without the list; to choose the columns, use CREATE TEMPORARY VIEW … (columns) USING aiorepl OPTIONS (…)"
        )
    return schema, options


def _with_metadata(schema: StructType, metadata: Mapping[str, str]) -> StructType:
    name = next(name for name in _COLUMNS if name in schema.names)
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, dict(metadata))
            if field.name == name
            else field
            for field in schema.fields
        ]
    )
