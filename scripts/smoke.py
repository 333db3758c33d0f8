"""Smoke test of an installed aiorepl: compiled modules, a transaction decoded to JSON, the sinks, the command.

    python -I scripts/smoke.py [--plain]

Run it with the Python that aiorepl is installed for; ``-I`` keeps the checkout off its path. ``--plain`` expects a wheel
without compiled modules. Needs aiorepl's own dependencies, but no extra, server or compiler.
"""
# ruff: noqa: INP001, T201 - a program

from __future__ import annotations

import contextlib
import io
import json
import struct
import sys
from importlib.metadata import entry_points
from typing import Any

import aiorepl
from aiorepl import compiled
from aiorepl.formats.native import NativeFormat
from aiorepl.pgoutput import decoder
from aiorepl.pipeline.registry import load, sinks
from aiorepl.testing import messages
from aiorepl.transactions.assembler import Assembler
from aiorepl.values.registry import Types
from aiorepl.wire.frames import FrameBuffer


def main() -> int:
    """Run every check; the first that fails ends the program with its traceback."""
    plain = "--plain" in sys.argv
    check(compiled.ACTIVE is not plain, f"compiled: {compiled.ACTIVE}")
    check(decoder.__file__.endswith(".py") is plain, decoder.__file__)
    event = decoded()
    check(event["new"] == {"id": 1, "at": "2026-11-22", "tags": ["a", "b"]}, event)
    loaded = [name for name in sinks() if loads(name)]
    check({"stdout", "jsonl", "postgres"} <= set(loaded), loaded)
    check("tail" in printed("--help"), "aiorepl --help")
    check("[source]" in printed("run", "--example"), "aiorepl run --example")
    form = "plain Python" if plain else "compiled"
    print(f"aiorepl {aiorepl.__version__} works, {form}, Python {sys.version.split()[0]}")
    return 0


def check(holds: bool, what: object) -> None:
    """Fail with ``what`` was found instead."""
    if not holds:
        raise SystemExit(f"smoke test failed: {what}")


def decoded() -> dict[str, object]:
    """The event of a transaction of one row, from the frames that a walsender sends."""
    columns = [
        messages.column("id", 23, key=True),
        messages.column("at", 1082),
        messages.column("tags", 1009),
    ]
    payloads = [
        messages.begin(final_lsn=16, xid=741),
        messages.relation(oid=16385, name="orders", columns=columns),
        messages.insert(relation=16385, new=["1", "2026-11-22", "{a,b}"]),
        messages.commit(commit_lsn=16, end_lsn=24),
    ]
    stream = b""
    for payload in payloads:
        body = b"w" + struct.pack(">QQq", 16, 24, 0) + payload
        stream += b"d" + struct.pack(">I", 4 + len(body)) + body
    buffer = FrameBuffer()
    buffer.space()[: len(stream)] = stream
    inbox: list[Any] = []
    buffer.advance(len(stream), inbox)
    (run,) = inbox
    slices = Assembler(Types()).feed(decoder.Decoder().messages(run))
    return json.loads(NativeFormat().lines(slices))


def loads(name: str) -> bool:
    """Whether the sink can be imported without an extra; one that cannot must say which extra it needs."""
    try:
        load(name)
    except aiorepl.ConfigurationError as error:
        check(f"pip install 'aiorepl[{name}]'" in str(error), error)
        return False
    return True


def printed(*arguments: str) -> str:
    """What the command ``aiorepl`` prints."""
    (script,) = entry_points(group="console_scripts", name="aiorepl")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            script.load()(list(arguments))
        except SystemExit as ended:
            check(not ended.code, ended.code)
    return output.getvalue()


if __name__ == "__main__":
    sys.exit(main())
