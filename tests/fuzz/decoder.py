"""Fuzz target: any bytes give messages or ProtocolError. ``test_decoder.py`` replays the corpus; to go on from there:

    python tests/fuzz/decoder.py -max_total_time=60 /tmp/found tests/fuzz/corpus

The first byte chooses ``streaming``; then come messages, each behind its length in two bytes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

if __name__ == "__main__":
    import atheris

    # To instrument all that is imported takes longer than to look for anything.
    instrumented = atheris.instrument_imports(include=["aiorepl.pgoutput"])
else:
    instrumented = contextlib.nullcontext()

with instrumented:
    from aiorepl.pgoutput.decoder import Decoder

from aiorepl.errors import ProtocolError
from aiorepl.pgoutput.messages import AnyMessage
from aiorepl.pgoutput.options import Streaming
from aiorepl.pgoutput.tuples import TupleData

MODES = list(Streaming)


def decode(data: bytes) -> Iterator[AnyMessage]:
    """Yield the messages up to an error."""
    decoder = Decoder(MODES[data[0] % 3] if data else Streaming.OFF)
    at = 1
    while at < len(data):
        at, start = at + 2 + int.from_bytes(data[at : at + 2], "big"), at + 2
        try:
            yield decoder.decode(data[start:at])
        except ProtocolError:
            continue


def use(data: bytes) -> None:
    """Decode messages, and read their content."""
    for message in decode(data):
        for row in (getattr(message, "new", None), getattr(message, "old", None)):
            if isinstance(row, TupleData):
                assert len(row.split()) == len(row.kinds()) == len(row)


if __name__ == "__main__":
    atheris.Setup(sys.argv, use)
    atheris.Fuzz()
