"""Other consumers: psycopg2 without decoding, and pypgoutput's decoder on top of it.

    python bench/raw.py raw|pypgoutput --dsn D --slot S --rows N

Ends after N row messages and prints how many there were, with the sums of their first columns where they are decoded.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg2
import psycopg2.extras

KINDS = {"I": "insert", "U": "update", "D": "delete"}


class Enough(Exception):
    """Raised when all rows have arrived."""


def pypgoutput() -> Callable[[bytes], Any]:
    """Pypgoutput's decoder: messages as objects, columns as text."""
    from pypgoutput import decoders

    classes = {
        b"B": decoders.Begin,
        b"C": decoders.Commit,
        b"R": decoders.Relation,
        b"I": decoders.Insert,
        b"U": decoders.Update,
        b"D": decoders.Delete,
    }
    return lambda payload: classes[payload[:1]](payload)


def main() -> None:
    """Read to the end LSN."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("raw", "pypgoutput"))
    for name in ("dsn", "slot"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--option", action="append", default=[])
    arguments = parser.parse_args()
    decode = pypgoutput() if arguments.kind == "pypgoutput" else None
    seen: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    left = arguments.rows

    def consume(received: Any) -> None:
        nonlocal left
        payload = received.payload
        kind = payload[:1].decode()
        message = None if decode is None else decode(payload)
        if kind in KINDS:
            seen[KINDS[kind]] += 1
            if message is not None:
                row = message.old_tuple if kind == "D" else message.new_tuple
                ids[KINDS[kind]] += int(row.column_data[0].col_data)
            left -= 1
        elif kind == "C" and left <= 0:
            raise Enough

    connection = psycopg2.connect(
        arguments.dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection
    )
    cursor = connection.cursor()
    options = {"proto_version": "1", "publication_names": "bench"} | dict(
        option.split("=") for option in arguments.option
    )
    cursor.start_replication(slot_name=arguments.slot, options=options, decode=False)
    try:
        cursor.consume_stream(consume)
    except Enough:
        print(json.dumps({**seen, "ids": None if decode is None else ids}))


if __name__ == "__main__":
    main()
