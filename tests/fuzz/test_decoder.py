"""The fuzz target reads its corpus and damaged copies: no other exception, and memory in proportion to the input."""

from __future__ import annotations

import random
import runpy
import tracemalloc
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TARGET = runpy.run_path(str(HERE / "decoder.py"))
SEEDS = runpy.run_path(str(HERE / "seeds.py"))
CORPUS = {path.name: path.read_bytes() for path in sorted((HERE / "corpus").iterdir())}
CLAIMS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\xff\xff", b"\x10\0\0\0")


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return a copy in which a few places are overwritten, removed, repeated or random."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        at, size = chance.randrange(len(damaged) + 1), chance.randint(0, 8)
        piece = chance.choice(
            (chance.randbytes(size), b"", bytes(damaged[at : at + size]) * 2, chance.choice(CLAIMS), b"\0")
        )
        damaged[at : at + size] = piece
    return bytes(damaged)


@pytest.mark.parametrize("name", SEEDS["seeds"]())
def test_seeds(name):
    """The stored seeds are what the builders write, and every message in them can be decoded."""
    streaming, payloads = SEEDS["transcripts"]()[name]

    assert SEEDS["seeds"]()[name] == CORPUS[name]
    assert len(payloads) == len(list(TARGET["decode"](CORPUS[name])))
    assert streaming is TARGET["MODES"][CORPUS[name][0]]


def test_every_message_is_in_the_corpus():
    """The corpus has all nineteen messages."""
    first = {payload[:1] for _, payloads in SEEDS["transcripts"]().values() for payload in payloads}

    assert set(b"BCORYIUDTMSEcAbPKrp") == {byte[0] for byte in first}


@pytest.mark.parametrize("name", CORPUS)
def test_corpus(name):
    """Every file of the corpus gives messages or ProtocolError."""
    TARGET["use"](CORPUS[name])


@pytest.mark.parametrize("seed", range(4))
def test_damaged(seed):
    """A thousand damaged copies, the same in every run, give messages or ProtocolError."""
    chance = random.Random(seed)
    originals = list(CORPUS.values())

    for _ in range(1000):
        TARGET["use"](damaged(chance, chance.choice(originals)))


@pytest.mark.parametrize("name", SEEDS["seeds"]())
def test_memory(name):
    """If any four bytes claim a huge length or count, memory stays in proportion to the input."""
    data = CORPUS[name]
    TARGET["use"](data)
    tracemalloc.start()
    try:
        for at in range(0, len(data) - 4, 3):
            TARGET["use"](data[:at] + CLAIMS[at % len(CLAIMS)] + data[at + 4 :])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000
