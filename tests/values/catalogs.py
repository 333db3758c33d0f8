"""Random catalogs and values, read from the stream in text and in binary form, and compared with the server's output.

    python tests/values/catalogs.py --version 18 --minutes 20 --seed 1

A round creates a schema of random types (enums, domains, composites, ranges, and arrays of the others), a table with columns of
these types, and random values. It alters types between the rows, and reads the table's changes through two slots. The server's
output functions and ``row_to_json`` give the expected values.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import orjson

import aiorepl
from aiorepl.formats.native import NativeFormat
from aiorepl.testing.server import EmbeddedServer
from aiorepl.wire.session_settings import TEXT_SETTINGS

BASE = {
    "int4": ["0", "-1", "2147483647", "(random() * 1000)::int4"],
    "int8": ["-9223372036854775808", "(random() * 1e15)::int8"],
    "numeric": ["'NaN'", "0.00", "-12345678901234567890.000012", "random()::numeric", "1e40", "0.0001"],
    "float8": ["'-0'", "'NaN'", "random()", "1e300", "'Infinity'", "5e-324"],
    "float4": ["random()", "3.4e38", "'-Infinity'"],
    "text": [
        "''",
        "'NULL'",
        "' '",
        "E'a\"b\\\\c,{}()[]'",
        "'é\u2028'",
        "md5(random()::text)",
        "E'\\t\\n\\r'",
    ],
    "varchar": ["'x'", "E'\\'\\''"],
    "bpchar": ["'a  '"],
    "bool": ["true", "false"],
    "bytea": ["''", "'\\x00ff5c22'", "decode(md5(random()::text), 'hex')"],
    "date": ["'infinity'", "'0044-03-15 BC'", "'2024-02-29'", "'5874897-12-31'", "'10000-01-01'"],
    "timestamp": [
        "'infinity'",
        "'2024-02-29 01:02:03.4'",
        "'4714-11-24 00:00:00 BC'",
        "'294276-12-31 23:59:59.999999'",
    ],
    "timestamptz": [
        "'-infinity'",
        "'2024-02-29 01:02:03.000001+05'",
        "now()",
        "'0001-12-31 23:59:59.5+00 BC'",
    ],
    "time": ["'24:00:00'", "'01:02:03.1'"],
    "timetz": ["'00:00-15:59:59'", "'23:59:59.999999+05:30'"],
    "interval": ["'0'", "'-1 year 2 mons -3 days 4 hours'", "'-0.5 sec'", "'-13 mons 5 days 00:00:01'"],
    "uuid": ["md5(random()::text)::uuid"],
    "jsonb": ["'null'", '\'{"a": [1, 2.50, null, "\\u00e9"]}\'', "'\"x\"'"],
    "json": ["'[]'", "'{\"a\":\n 1.0}'"],
    "inet": ["'1.2.3.4/24'", "'::ffff:1.2.3.4'", "'1::/16'"],
    "cidr": ["'1.2.3.0/24'"],
    "macaddr": ["'08:00:2b:01:02:03'"],
    "point": ["'(1,2)'", "'(1e300,-0)'"],
    "box": ["'(1,2),(3,4)'"],
    "path": ["'[(1,2)]'"],
    "bit": ["'1'"],
    "varbit": ["'101010101'", "''"],
    "money": ["'-1234567.89'"],
    "oid": ["4294967295"],
    "tsvector": ["'a:1A fat:3C ''it''''s'':5'"],
    "tsquery": ["'a & (b | !c)'", "'a <-> b'"],
    "xml": ["'<a>é</a>'"],
    "pg_lsn": ["'16/B374D848'"],
    '"char"': ["'a'", "''"],
    "name": ["'a b'"],
}
RANGES = {
    "int4range": "int4",
    "numrange": "numeric",
    "tstzrange": "timestamptz",
    "daterange": "date",
    "tsrange": "timestamp",
}
# Subtypes of ranges: their values can be compared.
ORDERED = [
    "int4",
    "int8",
    "numeric",
    "float8",
    "text",
    "date",
    "timestamp",
    "timestamptz",
    "time",
    "interval",
    "uuid",
    "inet",
]
AWKWARD = ["plain", "with space", 'quo"te', "comma,paren)", "ünï", "Upper", "select"]


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass
class Kind:
    """A type: its SQL name, what it is, and its parts."""

    name: str
    what: str
    parts: list[Kind]
    labels: list[str]


class Catalog:
    """The types of one schema.

    :param chance: draws everything.
    :param multiranges: whether the server has them.
    """

    def __init__(self, chance: random.Random, schema: str, *, multiranges: bool) -> None:
        self.chance = chance
        self.schema = schema
        self.multiranges = multiranges
        self.base = {name: Kind(name, "base", [], []) for name in BASE}
        self.made: list[Kind] = []

    def any(self, *, ordered: bool = False) -> Kind:
        """A type that exists."""
        if ordered:
            return self.base[self.chance.choice(ORDERED)]
        roll = self.chance.random()
        if roll < 0.35 or not self.made:
            return self.base[self.chance.choice(list(BASE))]
        if roll < 0.45:
            name = self.chance.choice(list(RANGES))
            if self.multiranges and self.chance.random() < 0.4:
                return Kind(
                    name.replace("range", "multirange"),
                    "multirange",
                    [Kind(name, "range", [self.base[RANGES[name]]], [])],
                    [],
                )
            return Kind(name, "range", [self.base[RANGES[name]]], [])
        kind = self.chance.choice(self.made)
        return Kind(f"{kind.name}[]", "array", [kind], []) if roll < 0.7 and kind.what != "array" else kind

    def create(self, number: int) -> tuple[str, Kind]:
        """The statement for another type."""
        what = self.chance.choice(
            ["enum", "domain", "domain", "composite", "composite", "composite", "range", "array"]
        )
        name = f"{self.schema}.{quoted(f'{self.chance.choice(AWKWARD)} {number}')}"
        if what == "enum":
            labels = [f"{self.chance.choice(AWKWARD)}{n}" for n in range(3)]
            listed = ", ".join("'" + label + "'" for label in labels)
            return f"CREATE TYPE {name} AS ENUM ({listed})", Kind(name, "enum", [], labels)
        if what == "domain":
            over = self.any()
            return f"CREATE DOMAIN {name} AS {over.name}", Kind(name, "domain", [over], [])
        if what == "range":
            over = self.any(ordered=True)
            extra = ""
            if self.multiranges:
                extra = f", multirange_type_name = {self.schema}.{quoted(f'multi {number}')}"
            made = Kind(name, "range", [over], [])
            if self.multiranges:
                self.made.append(Kind(f"{self.schema}.{quoted(f'multi {number}')}", "multirange", [made], []))
            return f"CREATE TYPE {name} AS RANGE (subtype = {over.name}{extra})", made
        if what == "array":
            over = self.any()
            over = over.parts[0] if over.what == "array" else over
            return "", Kind(f"{over.name}[]", "array", [over], [])
        fields = [self.any() for _ in range(self.chance.randint(1, 4))]
        named = [
            f"{quoted(f'{self.chance.choice(AWKWARD)}{n}')} {field.name}" for n, field in enumerate(fields)
        ]
        return f"CREATE TYPE {name} AS ({', '.join(named)})", Kind(name, "composite", fields, [])

    def value(self, kind: Kind, depth: int = 0) -> str:
        """An SQL expression of the type."""
        chance = self.chance
        if chance.random() < 0.08:
            return f"NULL::{kind.name}"
        match kind.what:
            case "base":
                return f"({chance.choice(BASE[kind.name])})::{kind.name}"
            case "enum":
                return f"'{chance.choice(kind.labels)}'::{kind.name}"
            case "domain":
                return f"({self.value(kind.parts[0], depth)})::{kind.name}"
            case "composite":
                fields = [self.value(part, depth + 1) for part in kind.parts]
                return f"ROW({', '.join(fields)})::{kind.name}"
            case "array":
                count = chance.randint(0, 1 if depth > 2 else 3)
                items = ", ".join(self.value(kind.parts[0], depth + 1) for _ in range(count))
                roll = chance.random()
                if count and roll < 0.1:
                    return f"ARRAY[ARRAY[{items}], ARRAY[{items}]]::{kind.name}"
                if count and roll < 0.15:
                    return f"array_fill({self.value(kind.parts[0], depth + 1)}, ARRAY[2], ARRAY[-3])::{kind.name}"
                return f"ARRAY[{items}]::{kind.name}"
            case "range":
                part = kind.parts[0]
                if chance.random() < 0.1:
                    return f"'empty'::{kind.name}"
                one, other = (f"({chance.choice(BASE[part.name])})::{part.name}" for _ in range(2))
                lower = "NULL" if chance.random() < 0.2 else f"least({one}, {other})"
                upper = "NULL" if chance.random() < 0.2 else f"greatest({one}, {other})"
                return f"{kind.name}({lower}, {upper}, '{chance.choice('[(')}{chance.choice('])')}')"
            case _:
                count = chance.randint(0, 2)
                return f"{kind.name}({', '.join(self.value_of_range(kind.parts[0]) for _ in range(count))})"

    def value_of_range(self, kind: Kind) -> str:
        """An SQL expression of the range that is not NULL, which a multirange cannot hold."""
        while (found := self.value(kind)).startswith("NULL"):
            pass
        return found

    def alteration(self) -> tuple[str, Callable[[], None]] | None:
        """A statement that alters one of the types, and what to do once it has succeeded."""
        kind = self.chance.choice(self.made)
        labels = kind.labels
        if kind.what == "enum" and self.chance.random() < 0.5:
            label = f"added{len(labels)}"
            return f"ALTER TYPE {kind.name} ADD VALUE '{label}' BEFORE '{labels[0]}'", lambda: labels.append(
                label
            )
        if kind.what == "enum":
            label = f"renamed{self.chance.randint(0, 10**9)}"
            renamed = f"ALTER TYPE {kind.name} RENAME VALUE '{labels[0]}' TO '{label}'"
            return renamed, lambda: labels.__setitem__(0, label)
        if kind.what == "composite":
            added = self.base[self.chance.choice(list(BASE))]
            name = quoted(f"added {self.chance.randint(0, 10**9)}")
            return f"ALTER TYPE {kind.name} ADD ATTRIBUTE {name} {added.name}", lambda: kind.parts.append(
                added
            )
        return None


def shape(value: Any, printed: Any) -> str | None:
    """Return how our value differs from ``row_to_json``'s in names, lengths, NULLs, numbers or booleans; ``None`` if not."""
    if isinstance(value, dict) and isinstance(printed, dict):
        if list(value) != list(printed):
            return f"fields {list(value)} instead of {list(printed)}"
        pairs = [(value[name], printed[name]) for name in value]
    elif isinstance(value, list) and isinstance(printed, list):
        if len(value) != len(printed):
            return f"{len(value)} elements instead of {len(printed)}"
        pairs = list(zip(value, printed, strict=True))
    elif (value is None) != (printed is None) or (
        isinstance(printed, (bool, int)) and isinstance(value, (bool, int)) and value != printed
    ):
        return f"{value!r} instead of {printed!r}"
    else:
        return None
    return next((found for pair in pairs if (found := shape(*pair)) is not None), None)


@dataclass
class Expected:
    """A row as the server prints it."""

    texts: list[str | None]
    json: dict[str, Any]
    sql: str


async def written(
    connection: asyncpg.Connection, catalog: Catalog, columns: list[Kind], rows: int
) -> dict[int, Expected]:
    """Insert rows one by one, and return the server's text of the accepted ones."""
    names = [f"c{n}" for n in range(len(columns))]
    texts = ", ".join(
        f"CASE WHEN {name} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {name}) END"
        for name in names
    )
    found = {}
    for _ in range(rows):
        values = ", ".join(catalog.value(kind) for kind in columns)
        statement = (
            f"INSERT INTO {catalog.schema}.t ({', '.join(names)}) VALUES ({values}) "
            f"RETURNING id, ARRAY[{texts}]::text[] AS texts, row_to_json(t)::text AS json"
        )
        try:
            row = await connection.fetchrow(statement)
        except asyncpg.PostgresError:
            continue  # for example, bounds that no value of the type can have
        try:
            json = orjson.loads(row["json"])
        except orjson.JSONDecodeError:
            json = {}  # a number that JSON of ours does not read
        found[row["id"]] = Expected(row["texts"], json, statement)
    return found


async def read(source: dict[str, Any], got: asyncio.Queue[Any]) -> None:
    """Give every row of the stream to the queue."""
    async with aiorepl.connect(**source) as stream:
        async for transaction in stream:
            async for change in transaction:
                got.put_nowait(change)
            await stream.ack(transaction)


TEXTS, TYPED = NativeFormat(values="text"), NativeFormat()


def compared(pair: list[Any], expected: Expected) -> list[str]:
    """Compare a row in both forms with the server's text, and with each other."""
    found = []
    values = []
    for change, form in zip(pair, ("text", "binary"), strict=True):
        try:
            printed = orjson.loads(TEXTS.event(change))["new"]
            value = dict(change.new)
            values.append((repr(value), TYPED.event(change).partition(b'"new":')[2]))
        except (aiorepl.AioreplError, ValueError) as error:
            found.append(f"{form}: {error}")
            continue
        for index, text in enumerate(expected.texts):
            name = f"c{index}"
            if printed[name] != text:
                found.append(f"{form} {name}: {printed[name]!r}, but the server prints {text!r}")
            if name in expected.json and (told := shape(value[name], expected.json[name])) is not None:
                found.append(f"{form} {name}: {told}")
    if len(values) == 2 and values[0] != values[1]:
        found.append(f"text and binary differ: {values}")
    return found


async def play(
    dsn: str, seed: int, *, version: int, turns: int = 3, rows: int = 12
) -> tuple[Counter[str], list[str]]:
    """Play a round; return its statements and the differences."""
    chance = random.Random(seed)
    schema, done, different = f"s{seed}", Counter({"rounds": 1}), []
    connection = await asyncpg.connect(dsn, server_settings=dict(TEXT_SETTINGS))
    readers: list[asyncio.Task[None]] = []
    slots = [f"{schema}_text", f"{schema}_binary"]
    try:
        await connection.execute(f"CREATE SCHEMA {schema}; SELECT setseed({chance.random()})")
        catalog = Catalog(chance, schema, multiranges=version >= 14)
        for number in range(chance.randint(4, 12)):
            statement, kind = catalog.create(number)
            try:
                await connection.execute(statement or "SELECT 1")
            except asyncpg.PostgresError:
                catalog.made = [each for each in catalog.made if kind not in each.parts]
                continue
            catalog.made.append(kind)
            done[kind.what] += 1
        columns = [catalog.any() for _ in range(2)] + [chance.choice(catalog.made) for _ in range(3)]
        listed = ", ".join(f"c{n} {kind.name}" for n, kind in enumerate(columns))
        await connection.execute(
            f"CREATE TABLE {schema}.t (id serial PRIMARY KEY, {listed}); CREATE PUBLICATION {schema} FOR TABLE {schema}.t"
        )
        queues: list[asyncio.Queue[Any]] = []
        for slot in slots:
            await connection.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
            queues.append(asyncio.Queue())
            source = {
                "dsn": dsn,
                "slot": slot,
                "publication": schema,
                "binary": slot.endswith("binary") and version >= 14,
            }
            readers.append(asyncio.create_task(read(source, queues[-1])))
        for _ in range(turns):
            for identity, expected in (await written(connection, catalog, columns, rows)).items():
                pair = [await taken(queue, reader) for queue, reader in zip(queues, readers, strict=True)]
                assert [identity] * 2 == [change.new["id"] for change in pair]
                done["rows"] += 1
                done["values"] += len(columns)
                different += [
                    f"seed {seed}: {told}\n  {expected.sql[:1500]}" for told in compared(pair, expected)
                ]
            altered = catalog.alteration()
            if altered is not None:
                try:
                    await connection.execute(altered[0])
                except asyncpg.PostgresError:
                    continue
                altered[1]()
                done["alterations"] += 1
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for slot in slots:
            await connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active".replace(
                    "$1", f"'{slot}'"
                )
            )
        await dropped(connection, slots)
        await connection.execute(f"DROP PUBLICATION IF EXISTS {schema}")
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await connection.close()
    return done, different


async def dropped(connection: asyncpg.Connection, slots: list[str]) -> None:
    """Drop the slots, once they are not in use."""
    drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY ($1)"
    async with asyncio.timeout(60):
        while True:
            try:
                await connection.execute(drop.replace("$1", f"ARRAY['{slots[0]}', '{slots[1]}']"))
                return
            except asyncpg.ObjectInUseError:
                await asyncio.sleep(0.01)


async def taken(queue: asyncio.Queue[Any], reader: asyncio.Task[None]) -> Any:
    """The next row, or the reader's error."""
    getting = asyncio.create_task(queue.get())
    await asyncio.wait([getting, reader], timeout=120, return_when=asyncio.FIRST_COMPLETED)
    if getting.done():
        return getting.result()
    getting.cancel()
    if reader.done():
        reader.result()
    raise TimeoutError("no row for two minutes")


def programs(version: int) -> Path | None:
    """The folder of a fetched server's programs; ``None`` for one from a wheel."""
    folder = Path(sys.prefix, "servers", str(version), "bin")
    return folder if folder.exists() else None


async def run(version: int, minutes: float, seed: int) -> int:
    """Play rounds for that long."""
    total: Counter[str] = Counter()
    failures = 0
    end = time.monotonic() + 60 * minutes
    with EmbeddedServer(version, bin_dir=programs(version)) as server:
        while time.monotonic() < end:
            try:
                done, different = await play(server.dsn, seed, version=version)
            except Exception as error:  # noqa: BLE001 - reported with its seed
                done, different = Counter(), [f"seed {seed}: {type(error).__name__}: {error}"]
            total += done
            failures += len(different)
            for each in different[:5]:
                print(each, flush=True)
            seed += 1
    print(f"version {version}, next seed {seed}: {failures} differences, {dict(total)}", flush=True)
    return failures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", type=int, default=18)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    sys.exit(1 if asyncio.run(run(chosen.version, chosen.minutes, chosen.seed)) else 0)


if __name__ == "__main__":
    main()
