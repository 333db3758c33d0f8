"""The format ``protobuf``: Debezium's envelope in Protobuf, with schemas in a registry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, Literal

from aiorepl.checked import checked
from aiorepl_schema_registry.envelope import Envelopes
from aiorepl_schema_registry.format import Encoder, RegistryFormat, Subject
from aiorepl_schema_registry.numbers import Numbers, numbers_of
from aiorepl_schema_registry.proto_files import encoder, file_of
from aiorepl_schema_registry.proto_text import printed
from aiorepl_schema_registry.registry import Registry, Visit
from aiorepl_schema_registry.shapes import Choices, Shape


@checked("format protobuf", empty=("name", "database"))
class ProtobufFormat(RegistryFormat):
    """Writes Protobuf in Confluent's wire format.

    :param registry: the registry's URL, or a table of properties of ``confluent_kafka``'s ``SchemaRegistryClient``: ``url``,
        ``basic.auth.user.info``, ``ssl.ca.location``, ``bearer.auth.token`` …
    :param subject: ``"topic"``, ``"record"`` or ``"topic_record"``.
    :param register: register missing schemas; otherwise a change without a registered schema is refused.
    :param namespace: the first part of the package, which schema and table follow.
    :param arrays: write arrays ``"typed"``, or as ``"string"`` with any number of dimensions.
    :param name: ``source.name``; by default the slot's name.
    :param database: ``source.db``; by default the slot's database.
    :raises ConfigurationError: an option has a value that it cannot have.
    """

    kind = "PROTOBUF"
    # Of the path to the message in its file: the first message has the short form.
    index = b"\0"

    def __init__(
        self,
        registry: str | Mapping[str, Any],
        *,
        subject: Subject = "topic",
        register: bool = True,
        namespace: str = "aiorepl",
        arrays: Literal["typed", "string"] = "typed",
        name: str = "aiorepl",
        database: str = "",
    ) -> None:
        super().__init__(
            Registry(self.kind, registry, register=register),
            # Protobuf has no decimals: numeric is PostgreSQL's text.
            Choices(namespace, decimals=False, arrays=arrays == "typed"),
            Envelopes(name, database),
            subject=subject,
        )

    async def schema(self, visit: Visit, subject: str, shape: Shape) -> tuple[int, Encoder]:
        """Return the id of the schema of a shape, and the encoder.

        A version that describes the same columns is used again, whatever came after it.
        """
        names = {field.name for field in shape.fields}
        all_numbers = Numbers()
        async with aclosing(visit.texts(subject)) as texts:
            async for text in texts:
                numbers = numbers_of(text, shape)
                if numbers is None:
                    continue
                if numbers.fields.keys() == names:
                    described = file_of(shape, numbers)
                    if (found := await visit.find(subject, printed(described))) is not None:
                        return found, encoder(described, shape)
                all_numbers.add_earlier(numbers)
        described = file_of(shape, all_numbers.for_names(field.name for field in shape.fields))
        return await visit.id_of(subject, printed(described)), encoder(described, shape)

    def encoder(self, shape: Shape) -> Encoder:
        return encoder(file_of(shape, Numbers()), shape)

    def describes(self, text: str, full_name: str) -> bool:
        package, _, record = full_name.rpartition(".")
        return all(
            re.search(pattern, text)
            for pattern in (rf"\bpackage\s+{re.escape(package)}\s*;", rf"\bmessage\s+{record}\s*\{{")
        )
