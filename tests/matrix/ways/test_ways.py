"""Every way to read a server gives the same events, byte for byte, and they are the expected ones."""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import compress
from operator import not_
from pathlib import Path

import pytest

pytestmark = pytest.mark.by_day


def test_the_expectation(stage):
    """The plainest way, version 1 and text, gives what the scenario says, with the server's own headers."""
    assert stage.expected == [json.loads(line) for line in stage.lines]


async def test_a_way(stage, way):
    """Version, streaming, form of values, two-phase and route do not show in any byte of the events."""
    lines = await stage.read(way)

    if way.prepared == "told":
        lines = settled(lines)
    assert stage.lines == lines


async def test_live(stage, live_way):
    """It is the same when read while it happens, transactions in progress and all."""
    lines = await stage.read(live_way)

    assert stage.lines == (settled(lines) if live_way.prepared == "told" else lines)


async def test_origins(stage, origin_way):
    """``origin=none`` leaves out what came from elsewhere and nothing else; ``any`` leaves out nothing."""
    foreign = [b'"origin":"matrix origin' in line for line in stage.lines]
    assert 3 == sum(foreign)

    wanted = stage.lines if origin_way.origin == "any" else list(compress(stage.lines, map(not_, foreign)))
    assert wanted == await stage.read(origin_way)


async def test_tail(fork_server, stage, tail_way):
    """``aiorepl tail`` prints just these lines."""
    source = stage.source(tail_way)
    given = {
        "dsn": source.dsn.reveal(),
        "slot": source.slot,
        "until": stage.end,
        "proto-version": source.proto_version,
        "streaming": source.streaming,
        "interface": source.interface,
    }
    flags = [f"--{name}={value}" for name, value in given.items()]
    flags += [f"--publication={name}" for name in source.publication]
    flags += [
        f"--{name}" for name in ("binary", "two-phase", "messages") if getattr(source, name.replace("-", "_"))
    ]
    program = Path(sys.executable).with_name("aiorepl")
    process = await fork_server.start(program, "tail", *flags, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()

    assert 0 == process.returncode
    assert [*stage.lines, b""] == printed.split(b"\n")


def settled(lines: list[bytes]) -> list[bytes]:
    """Events with boundaries as they would have come without: prepared ones where they commit, or never."""
    settled: list[bytes] = []
    prepared: dict[str, list[bytes]] = {}
    into = settled
    for line in lines:
        event = json.loads(line)
        match event["kind"]:
            case "begin":
                into = []
            case "commit":
                settled += into
                into = settled
            case "prepare":
                prepared[event["gid"]], into = into, settled
            case "commit_prepared":
                settled += [at_commit(row, event) for row in prepared.pop(event["gid"])]
            case "rollback_prepared":
                del prepared[event["gid"]]
            case _:
                into.append(line)
    assert {} == prepared
    return settled


def at_commit(row: bytes, commit: dict[str, str]) -> bytes:
    """A prepared row's event with what was known when it committed."""
    for name in ("commit_lsn", "commit_time"):
        row = row.replace(f'"{name}":null'.encode(), f'"{name}":"{commit[name]}"'.encode(), 1)
    return row
