"""One scenario for every server, and the ways to read it.

``scenario/*.sql`` is run once on each server; the files say beside each transaction what is to come of it. A way is a
server's protocol version with its options and a route; what it reads must not show which one it was.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from aiorepl.pgoutput.options import best_version

SERVERS = (13, 14, 15, 16, 17, 18, 19)
_LARGE = "".join(hashlib.md5(str(i).encode()).hexdigest() for i in range(1, 301))
_PLACEHOLDERS = {
    "@large@": _LARGE,
    "@x100@": "x" * 100,
    "@y100@": "y" * 100,
    "@x100base64@": base64.b64encode(b"x" * 100).decode(),
}


@dataclass(frozen=True)
class Way:
    """A way to read: the protocol's version and options, what makes the server stream, and the route.

    :param prepared: ``no`` two-phase, prepared transactions ``held`` until they commit, or ``told`` when prepared.
    :param at: when a transaction is streamed: past ``64kB``, or ``once``, change by change (16 and later).
    """

    proto: int
    streaming: str = "off"
    binary: bool = False
    prepared: str = "no"
    route: str = "walsender"
    at: str = "64kB"
    origin: str | None = None
    reader: str = "library"

    def __str__(self) -> str:
        words = [f"v{self.proto}", self.route, f"streaming_{self.streaming}", self.at]
        words += ["binary"] * self.binary + [f"two_phase_{self.prepared}"] * (self.prepared != "no")
        words += [f"origin_{self.origin}"] * (self.origin is not None)
        return "-".join([*words, *[self.reader] * (self.reader != "library")])

    @property
    def immediately(self) -> bool:
        """Return whether every transaction is streamed, however small."""
        return self.at == "once" and self.streaming != "off"


def possible(server: int) -> list[Way]:
    """Return every way that a server supports."""
    protos = range(1, best_version(server) + 1)
    modes = {"off": 1, "on": 2, "parallel": 4}
    every = itertools.product(
        protos,
        modes,
        (False, True) if server >= 14 else (False,),
        ("no", "held", "told"),
        ("walsender", "sql"),
        ("64kB", "once") if server >= 16 else ("64kB",),
    )
    ways = itertools.starmap(Way, every)
    return [
        way for way in ways if modes[way.streaming] <= way.proto and (way.prepared == "no" or way.proto >= 3)
    ]


def pairs(way: Way) -> set[tuple[Any, ...]]:
    """Return the pairs of settings that a way has."""
    settings = [(name, getattr(way, name)) for name in Way.__dataclass_fields__]
    return set(itertools.combinations(settings, 2))


def chosen(server: int) -> list[Way]:
    """Return few ways that have every pair of settings of any way; the first is the simplest."""
    left = possible(server)
    ways = [left[0]]
    missing = set().union(*map(pairs, left)) - pairs(ways[0])
    while missing:
        best = max(left, key=lambda way: len(pairs(way) & missing))
        ways.append(best)
        missing -= pairs(best)
    return ways


def told_by_tail(server: int) -> list[Way]:
    """Return the ways for the command line: the newest version of each interface."""
    ways = [replace(way, reader="tail") for way in possible(server)]
    best = [way for way in ways if way.proto == ways[-1].proto and way.streaming == ways[-1].streaming]
    routes = (("walsender", "held"), ("sql", "no")) if server >= 15 else (("walsender", "no"), ("sql", "no"))
    return [
        next(way for way in reversed(best) if (way.route, way.prepared) == wanted and way.at == "64kB")
        for wanted in routes
    ]


def by_origin(server: int) -> list[Way]:
    """Return the ways with an ``origin`` option."""
    return [
        Way(proto, streaming, origin=origin, route=route)
        for proto, streaming, origin, route in (
            (1, "off", "none", "walsender"),
            (4, "parallel", "none", "sql"),
            (4, "on", "any", "walsender"),
        )
        if server >= 16
    ]


def live(server: int) -> list[Way]:
    """Return the ways that read while transactions run: the newest version, with prepared transactions delivered and held."""
    best = replace(possible(server)[-1], reader="live", route="walsender")
    return [best, replace(best, prepared="held", at="64kB")] if server >= 15 else [best]


class Scenario:
    """The statements for one server, in order, and the events that are to come of them."""

    def __init__(self, server: int) -> None:
        self.setup: list[tuple[str, str]] = []
        self.statements: list[tuple[str, str]] = []
        self.expected: list[dict[str, Any]] = []
        self._server = server
        for path in sorted(Path(__file__).parent.joinpath("scenario").glob("*.sql")):
            self._read(path, self.setup if path.name.startswith("01") else self.statements)

    def _read(self, path: Path, statements: list[tuple[str, str]]) -> None:
        session, origin, wanted, statement = "a", None, True, ""
        for line in path.read_text().splitlines():
            match line.split(maxsplit=2):
                case ["--", "since", version]:
                    wanted = self._server >= int(version)
                case ["--", "all"]:
                    wanted = True
                case ["--", "as", session]:
                    pass
                case ["--", "origin", *names]:
                    origin = names[0] if names else None
                case [arrow, *_] if arrow.startswith("-->"):
                    self._expect(line, origin) if wanted else None
                case ["--", *_] | []:
                    pass
                case _:
                    statement += line + "\n"
                    if line.endswith(";"):
                        statements += [(session, statement)] if wanted else []
                        statement = ""

    def _expect(self, line: str, origin: str | None) -> None:
        found = re.fullmatch(r"-->(?:(\d+)-(\d+))? (.*)", line)
        assert found is not None, line
        text = found[3]
        for name, value in _PLACEHOLDERS.items():
            text = text.replace(name, value)
        for number in range(int(found[1] or 1), int(found[2] or 1) + 1):
            event = _event(*json.loads(text.replace("#", str(number)))) | {"origin": origin}
            if event["kind"] == "message" and not event["transactional"]:
                del event["origin"]
            self.expected.append(event)


def _event(kind: str, *rest: Any) -> dict[str, Any]:
    if kind == "message":
        return {"kind": kind, **dict(zip(("prefix", "content", "transactional"), rest, strict=True))}
    if kind == "truncate":
        tables, cascade, restart = rest
        return {
            "kind": kind,
            "tables": list(map(_table, tables)),
            "cascade": cascade,
            "restart_identity": restart,
        }
    table, key, new, old, *unchanged = rest
    row = {"key": key, "new": new, "old": old, "unchanged": unchanged[0] if unchanged else []}
    return {"kind": kind, **_table(table), **row}


def _table(name: str | list[str]) -> dict[str, str]:
    schema, table = ("public", name) if isinstance(name, str) else name
    return {"schema": schema, "table": table}


_KINDS: dict[str, Callable[[int], list[Way]]] = {
    "way": chosen,
    "tail_way": told_by_tail,
    "origin_way": by_origin,
    "live_way": live,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``way`` for each chosen way of each server; ``version`` alone is each server."""
    names = set(metafunc.fixturenames)
    given = {name for mark in metafunc.definition.iter_markers("parametrize") for name in _argnames(mark)}
    kind = next(iter(names & set(_KINDS)), None)
    if kind is not None:
        cases = [(server, way) for server in SERVERS for way in _KINDS[kind](server)]
        metafunc.parametrize(("version", kind), cases, ids=[f"{server}-{way}" for server, way in cases])
    elif "version" in names - given:
        metafunc.parametrize("version", SERVERS)


def _argnames(mark: pytest.Mark) -> list[str]:
    names = mark.args[0]
    return [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one server in one process, which has it running."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "version" in parameters and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(f"matrix-{parameters['version']}"))


@pytest.fixture
def server(version: int, servers: Any) -> Any:
    """The test's server, for ``database``."""
    return servers(version)


@pytest.fixture(scope="session")
def ways_of() -> Callable[[int], list[Way]]:
    """Return all ways that are tried on a server."""
    return lambda server: [way for ways in _KINDS.values() for way in ways(server)]


@pytest.fixture
def pairs_left(version: int) -> set[tuple[Any, ...]]:
    """Return the pairs of settings of a server that no chosen way has."""
    return set().union(*map(pairs, possible(version))).difference(*map(pairs, chosen(version)))


@pytest.fixture(scope="session")
def scenario_of() -> Callable[[int], Scenario]:
    """Return the scenario for a server."""
    return Scenario


@pytest.fixture
async def client(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to a database with a published table."""
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE items")
    yield connection
    await connection.close()
