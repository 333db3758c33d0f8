"""Both formats pass the tests of formats, with a real registry between writer and reader."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from aiorepl import LSN
from aiorepl.testing.conformance import Event, FormatConformance
from aiorepl_schema_registry.avro import AvroFormat
from aiorepl_schema_registry.protobuf import ProtobufFormat

KINDS = {"c": "insert", "r": "read", "u": "update", "d": "delete", "t": "truncate", "m": "message"}
# PostgreSQL's least and greatest date, as days since 1970: Julian day 0, and the last day of the documented range.
DAYS = {
    "4714-11-24 BC": -2_440_588,
    "5874897-12-31": 2_145_042_905,
    "infinity": 2**31 - 1,
    "-infinity": -(2**31),
}
MOMENTS = {"infinity": 2**63 - 1, "-infinity": -(2**63)}
ARRAYS = {"int4[]": [1, None, 3], "text[]": ["a,b", "", None, "NULL"]}


def microseconds(text):
    if text in MOMENTS:
        return MOMENTS[text]
    text = text.removesuffix("+00")
    if text.endswith(" BC"):
        text = f"{1 - int(text[:4]):05d}{text[4:-3]}"
    return int(np.datetime64(text.replace(" ", "T"), "us").astype(int))


def same(value, text, type_name):
    match type_name:
        case "bool":
            return value is (text == "t")
        case "int2" | "int4" | "int8" | "oid":
            return value == int(text)
        case "float8" | "float4":
            code = "d" if type_name == "float8" else "f"
            expected = struct.unpack(code, struct.pack(code, float(text)))[0]
            return (
                math.isnan(value)
                if math.isnan(expected)
                else struct.pack("d", value) == struct.pack("d", expected)
            )
        case "bytea":
            return value == bytes.fromhex(text[2:])
        case "date":
            return value == (DAYS[text] if text in DAYS else int(np.datetime64(text, "D").astype(int)))
        case "time":
            hour, minute, second = text.split(":")
            return value == round((int(hour) * 3600 + int(minute) * 60 + float(second)) * 1_000_000)
        case "timestamp" | "timestamptz":
            return value == microseconds(text)
        case "int4[]" | "text[]":
            return value == ARRAYS[type_name]
    return value == text


class Kit(FormatConformance):
    subject = "topic"

    @pytest.fixture(autouse=True)
    def registry(self, registry_url, readers):
        self.url, self.readers = registry_url, readers

    def same(self, value, text, type_name):
        return same(value, text, type_name)

    def event(self, fields):
        source, new = fields["source"], fields.get("after")
        if new is not None:
            new = {name: value for name, value in new.items() if name not in fields["unchanged"]}
        return Event(
            LSN(source["lsn"]),
            source["ordinal"],
            KINDS[fields["op"]],
            (source["schema"], source["table"]),
            new,
        )


class TestAvro(Kit):
    def make_format(self):
        return AvroFormat(self.url, subject=self.subject)

    def read(self, event, headers):
        return self.event(self.readers.plain_avro(event))


class TestAvroByRecord(TestAvro):
    subject = "record"


class TestProtobuf(Kit):
    subject = "topic_record"

    def make_format(self):
        return ProtobufFormat(self.url, subject=self.subject, namespace="proto")

    def read(self, event, headers):
        return self.event(self.readers.protobuf_fields(event))


class TestProtobufByRecord(TestProtobuf):
    subject = "record"
