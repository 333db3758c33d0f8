"""The format ``avro``: Debezium's envelope in Avro, with schemas in a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from aiorepl.checked import checked
from aiorepl_schema_registry.avro_schemas import encoder, schema_of
from aiorepl_schema_registry.envelope import Envelopes
from aiorepl_schema_registry.format import Encoder, RegistryFormat, Subject
from aiorepl_schema_registry.registry import Registry, Visit
from aiorepl_schema_registry.shapes import Choices, Shape


@checked("format avro", empty=("name", "database"))
class AvroFormat(RegistryFormat):
    """Writes Avro in Confluent's wire format.

    :param registry: the registry's URL, or a table of properties of ``confluent_kafka``'s ``SchemaRegistryClient``: ``url``,
        ``basic.auth.user.info``, ``ssl.ca.location``, ``bearer.auth.token`` …
    :param subject: ``"topic"``, ``"record"`` or ``"topic_record"``.
    :param register: register missing schemas; otherwise a change without a registered schema is refused.
    :param namespace: the first part of the records' names, which schema and table follow.
    :param decimals: write ``numeric(p, s)`` as ``"decimal"`` or, with NaN and any number of digits, as ``"string"``.
    :param arrays: write arrays ``"typed"``, or as ``"string"`` with any number of dimensions.
    :param name: ``source.name``; by default the slot's name.
    :param database: ``source.db``; by default the slot's database.
    :raises ConfigurationError: an option has a value that it cannot have.
    """

    kind = "AVRO"
    index = b""

    def __init__(
        self,
        registry: str | Mapping[str, Any],
        *,
        subject: Subject = "topic",
        register: bool = True,
        namespace: str = "aiorepl",
        decimals: Literal["decimal", "string"] = "decimal",
        arrays: Literal["typed", "string"] = "typed",
        name: str = "aiorepl",
        database: str = "",
    ) -> None:
        super().__init__(
            Registry(self.kind, registry, register=register),
            Choices(namespace, decimals == "decimal", arrays == "typed"),
            Envelopes(name, database),
            subject=subject,
        )

    async def schema(self, visit: Visit, subject: str, shape: Shape) -> tuple[int, Encoder]:
        # Readers find fields by their names, so the schema depends on the shape alone.
        described = schema_of(shape)
        text = json.dumps(described, separators=(",", ":"))
        return await visit.id_of(subject, text), encoder(described, shape)

    def encoder(self, shape: Shape) -> Encoder:
        return encoder(schema_of(shape), shape)

    def describes(self, text: str, full_name: str) -> bool:
        try:
            found = json.loads(text)
        except ValueError:
            return False
        return isinstance(found, dict) and f"{found.get('namespace')}.{found.get('name')}" == full_name
