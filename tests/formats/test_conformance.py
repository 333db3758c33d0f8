"""The built-in formats pass the tests of formats, and a format that breaks the contract does not."""

from __future__ import annotations

import orjson
import pytest

from aiorepl import LSN
from aiorepl.formats import named
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.conformance import Event, FormatConformance
from aiorepl.transactions.changes import RowChange

KINDS = {"c": "insert", "r": "read", "u": "update", "d": "delete", "t": "truncate", "m": "message"}


class TestNative(FormatConformance):
    def make_format(self):
        return named("native", values="text")

    def read(self, event, headers):
        return Event.from_native(event)


class TestCloudEvents(TestNative):
    def make_format(self):
        return named("cloudevents", values="text")

    def read(self, event, headers):
        return super().read(orjson.dumps(orjson.loads(event)["data"]), headers)


class TestBinaryCloudEvents(TestNative):
    def make_format(self):
        return named({"type": "cloudevents", "binary": "kafka"}, values="text")

    def read(self, event, headers):
        found = super().read(event, headers)
        assert headers["ce_type"] == f"aiorepl.{found.kind}.v1"
        return found


class TestDebezium(FormatConformance):
    def make_format(self):
        return named("debezium")

    def read(self, event, headers):
        fields = orjson.loads(event)
        source = fields["source"]
        lsn, ordinal = map(int, orjson.loads(source["sequence"]))
        after = fields.get("after")
        if after is not None:
            after = {k: v for k, v in after.items() if v != "__debezium_unavailable_value"}
        table = (source["schema"], source["table"])
        return Event(LSN(lsn), ordinal, KINDS[fields["op"]], table, after)

    def same(self, value, text, type_name):
        return value == text if type_name == "text" else value is not None


class Broken(NativeFormat):
    """A format that breaks the contract, as ``how`` says."""

    def __init__(self, how):
        super().__init__(values="text")
        self.how, self.count = how, 0

    def key(self, change):
        if self.how == "keys":
            self.count += 1
            return b"%d" % self.count
        return super().key(change)

    def event(self, change):
        event = super().event(change)
        match self.how:
            case "counts":
                self.count += 1
                return event[:-1] + b',"n":%d}' % self.count
            case "lines":
                return event + b"\n"
            case "null" if isinstance(change, RowChange):
                return event.replace(b"null", b'""')
            case "unchanged":
                fields = orjson.loads(event)
                return orjson.dumps({**fields, "new": fields["new"] | dict.fromkeys(fields["unchanged"])})
            case "schema" if isinstance(change, RowChange):
                return event.replace(b'"c":', b'"a":')
        return event


@pytest.mark.parametrize(
    ("how", "test"),
    [
        ("keys", "test_keys"),
        ("counts", "test_determinism"),
        ("lines", "test_lines"),
        ("null", "test_unchanged_and_null"),
        ("unchanged", "test_unchanged_and_null"),
        ("schema", "test_a_schema_change_in_the_middle"),
    ],
)
def test_broken_formats(how, test):
    """Each defect fails a test."""

    class Kit(TestNative):
        def make_format(self):
            return Broken(how)

    with pytest.raises(AssertionError):
        getattr(Kit(), test)()


def test_lines_need_no_preparation():
    """A format with ``prepare`` cannot be lines, because sinks of lines do not call ``prepare``."""

    class Kit(TestNative):
        def make_format(self):
            class Prepared(NativeFormat):
                async def prepare(self, change):
                    """Do nothing."""

            return Prepared()

    with pytest.raises(AssertionError, match="is_text is set"):
        Kit().test_lines()
