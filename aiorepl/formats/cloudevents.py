"""CloudEvents 1.0 with the native event as ``data``.

Structured mode, one JSON object per event, from ``events``::

    {"specversion":"1.0","id":"0/171B2A8-0","source":"/postgresql/7300…/orders","type":"aiorepl.insert.v1",
     "subject":"public.orders","time":"2026-11-21T08:00:00.123456Z","datacontenttype":"application/json","data":{…}}

The option ``binary`` chooses binary mode: the payload is the native event, and the headers are the attributes.

Source: CloudEvents 1.0.2, its JSON event format, HTTP and Kafka protocol bindings.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Literal
from urllib.parse import quote

import orjson

from aiorepl.checked import checked
from aiorepl.formats import Values
from aiorepl.formats.format import Format, event_id, iso_time
from aiorepl.formats.native import NativeFormat
from aiorepl.formats.pieces import joined
from aiorepl.position import Position
from aiorepl.transactions.changes import Change, Message, RowChange, Truncate, is_large
from aiorepl.transactions.publication_changes import PublicationChange
from aiorepl.transactions.schema_changes import SchemaChange
from aiorepl.transactions.slices import Slice
from aiorepl.transactions.transaction import Transaction

# Characters that quote() would escape, and that an HTTP header may contain.
_HTTP_SAFE = "!#$&'()*+,/:;<=>?@[\\]^`{|}~"


@checked("format cloudevents")
class CloudEventsFormat(Format):
    """Writes CloudEvents.

    :param source: the attribute ``source``, a URI reference; unique together with ``id``.
    :param type_prefix: the part of ``type`` before the kind of the event.
    :param values: ``"typed"`` or ``"text"``, for the native event in ``data``.
    :param binary: binary mode for ``"http"`` (headers ``ce-id`` …) or ``"kafka"`` (headers ``ce_id`` …); ``None``: structured mode.
    :param boundaries: write events for the begin and the end of a transaction too.
    :raises ConfigurationError: an option has a value that it cannot have.
    """

    content_type = "application/cloudevents+json"
    supports_prepared = True
    has_resync = True

    def __init__(
        self,
        *,
        source: str = "/postgresql",
        type_prefix: str = "aiorepl",
        values: Values = "typed",
        binary: Literal["http", "kafka"] | None = None,
        boundaries: bool = False,
    ) -> None:
        super().__init__(boundaries=boundaries)
        self._binary = binary
        self._source = source
        self._type_prefix = type_prefix
        self._native = NativeFormat(values=values)

    @classmethod
    def defaults(cls, position: Position) -> dict[str, Any]:
        return {"source": f"/postgresql/{position.system_identifier}/{position.slot}"}

    def event(self, change: Change) -> bytes:
        """Return a change in structured mode, or the native event in binary mode."""
        if self._binary is not None:
            return self._native.event(change)
        if isinstance(change, RowChange) and is_large(change):
            pieces = self._native.event_pieces(change)
            return joined(chain((_head(self.attributes(change)),), pieces, (b"}",)), pieces.least)
        return _structured(self.attributes(change), self._native.event(change))

    def headers(self, change: Change) -> Mapping[str, str]:
        """Return the attributes and ``content-type`` in binary mode; nothing in structured mode."""
        if self._binary is None:
            return {}
        attributes = self.attributes(change)
        content_type = {"content-type": attributes.pop("datacontenttype")}
        if self._binary == "kafka":
            return {f"ce_{name}": value for name, value in attributes.items()} | content_type
        return {f"ce-{name}": quote(value, _HTTP_SAFE) for name, value in attributes.items()} | content_type

    def key(self, change: Change) -> bytes | None:
        """Return the native format's key."""
        return self._native.key(change)

    def attributes(self, change: Change) -> dict[str, str]:
        """Return the context attributes of a change's event."""
        attributes = self._attributes(event_id(change), change.kind, change.transaction)
        if isinstance(change, (RowChange, SchemaChange)):
            attributes["subject"] = str(change.relation)
        elif isinstance(change, Truncate):
            attributes["subject"] = ",".join(map(str, change.relations))
        elif isinstance(change, PublicationChange):
            attributes["subject"] = f"{change.schema}.{change.table}" if change.schema else change.table
        elif isinstance(change, Message) and change.prefix:
            attributes["subject"] = change.prefix
        return attributes

    def begin(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``begin`` event."""
        return self._boundary(transaction, self._native.begin(part, transaction))

    def end(self, part: Slice, transaction: Transaction) -> bytes:
        """Return the ``commit``, ``prepare``, ``commit_prepared`` or ``rollback_prepared`` event."""
        return self._boundary(transaction, self._native.end(part, transaction))

    def _boundary(self, transaction: Transaction, data: bytes) -> bytes:
        kind = orjson.loads(data)["kind"]
        return _structured(self._attributes(f"{transaction.commit_lsn}-{kind}", kind, transaction), data)

    def _attributes(self, identity: str, kind: str, transaction: Transaction | None) -> dict[str, str]:
        attributes = {
            "specversion": "1.0",
            "id": identity,
            "source": self._source,
            "type": f"{self._type_prefix}.{kind}.v1",
        }
        # The time of the commit, PREPARE or decision. A message between transactions has none. A year that does not have
        # four digits is omitted, because RFC 3339 cannot express it.
        time = None if transaction is None else iso_time(transaction.commit_timestamp)
        if time is not None and time[0] not in "+-":
            attributes["time"] = time
        return attributes | {"datacontenttype": "application/json"}


def _structured(attributes: dict[str, str], data: bytes) -> bytes:
    return _head(attributes) + data + b"}"


def _head(attributes: dict[str, str]) -> bytes:
    """Return a structured event up to its data."""
    return orjson.dumps(attributes)[:-1] + b',"data":'
