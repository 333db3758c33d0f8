"""Events as Avro and Protobuf with a schema registry: the formats ``avro`` and ``protobuf``.

Events have Confluent's wire format: a zero byte, the id of the schema in four bytes, the message's index for Protobuf, and the data.
"""

from __future__ import annotations

from aiorepl_schema_registry.names import escaped, unescaped

__all__ = ["escaped", "unescaped"]
