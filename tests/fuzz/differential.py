"""Differential fuzzing: the compiled modules and plain Python give the same results for the same bytes.

    python tests/fuzz/differential.py --inputs 10000000 --seed 1

Two processes, one for each form, generate the same inputs from the seed, in blocks, and print a digest of each block's outcomes.
If two digests differ, both forms print the outcomes of that block, and the first input with different outcomes is reported.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import runpy
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from aiorepl import compiled
from aiorepl.errors import AioreplError
from aiorepl.formats.arrow.collected import CollectedRows
from aiorepl.formats.arrow.column_filler import fill
from aiorepl.formats.arrow.filled import FilledColumn
from aiorepl.formats.arrow.row_collector import BlockScanner
from aiorepl.formats.arrow.types import arrow_type
from aiorepl.formats.native import NativeFormat
from aiorepl.journal.segment_builder import SegmentBuilder
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.position import Position
from aiorepl.snapshot.copy_rows import SIGNATURE, RowSplitter
from aiorepl.testing import messages as build
from aiorepl.testing.conformance.samples import SAMPLES
from aiorepl.testing.messages import Binary, column
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.rows import Layout
from aiorepl.values import Format, Types
from aiorepl.values.codec import Malformed, UnknownBinaryType
from aiorepl.values.types import BUILTIN
from aiorepl.wire.copy_frames import CopyFrames
from aiorepl.wire.frames import FrameBuffer
from tests.values.user_types import USER_TYPES

HERE = Path(__file__).parent
BLOCK = 100
TYPES = Types(USER_TYPES)
PIECES = (
    *(
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x80\0\0\0",
        b"\0\0\0\0",
        b"\0\0\0\1",
        b"\0",
        b"\xff",
        b"\xc3",
    ),
    *(
        b"{",
        b"}",
        b"(",
        b")",
        b"[",
        b"]",
        b",",
        b'"',
        b'""',
        b"\\",
        b" ",
        b"NULL",
        b"NaN",
        b"infinity",
        b" BC",
        b"-",
    ),
    *(
        b"+",
        b".",
        b"e",
        b":",
        b"0",
        b"9",
        b"99999999",
        b"/",
        b"'",
        b"<",
        b">",
        b"=>",
        b"::",
        b";",
        b"\xc3\xa9",
    ),
)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return a copy in which a few places are overwritten, removed, repeated or random."""
    if not data:
        return chance.choice(PIECES)
    out = bytearray(data)
    for _ in range(1 + (chance.getrandbits(8) & 3)):
        at, kind = chance.randrange(len(out) + 1), chance.getrandbits(3)
        if kind < 3 and at < len(out):
            out[at] ^= 1 << chance.getrandbits(3)
        elif kind < 6:
            piece = chance.choice(PIECES)
            out[at : at + (len(piece) if kind == 5 else 0)] = piece
        elif kind == 6:
            del out[at : at + 1 + chance.getrandbits(3)]
        else:
            out[at:at] = out[max(0, at - 9) : at]
    return bytes(out)


def _nested(values: list[bytes], oids: list[int]) -> Iterator[tuple[int, Format, bytes]]:
    """Values of nested types in binary form, built from values of their elements."""

    def number(value: int) -> bytes:
        return value.to_bytes(4, "big", signed=True)

    def array(oid: int, items: list[bytes]) -> bytes:
        body = b"".join(number(len(item)) + item for item in items)
        return number(1) + number(0) + number(oid) + number(len(items)) + number(1) + body

    def composite(*fields: tuple[int, bytes]) -> bytes:
        return number(len(fields)) + b"".join(number(oid) + number(len(raw)) + raw for oid, raw in fields)

    arrays = {info.element: oid for oid, info in BUILTIN.items() if info.kind == "a"}
    for oid, raw in zip(oids, values, strict=True):
        if oid in arrays:
            yield arrays[oid], Format.BINARY, array(oid, [raw, raw])
    pair = composite((23, number(7)), (1009, array(25, [b"x", b'"'])))
    spread = b"\2" + number(len(pair)) + pair + number(len(pair)) + pair
    yield from (
        (70001, Format.BINARY, pair),
        (70002, Format.BINARY, array(70001, [pair, pair])),
        (70003, Format.BINARY, number(-1)),
        (70005, Format.BINARY, spread),
        (70006, Format.BINARY, number(1) + number(len(spread)) + spread),
        (70007, Format.BINARY, number(1) + number(1) + b"k" + number(-1)),
        (70008, Format.BINARY, b"\1a.b.c"),
        (
            70009,
            Format.BINARY,
            composite(
                (70002, array(70001, [pair])),
                (70005, spread),
                (70003, number(3)),
                (1231, array(1700, [bytes(8)])),
            ),
        ),
    )


def _samples() -> list[tuple[int, Format, bytes]]:
    found = [(sample.oid, Format.TEXT, sample.text.encode()) for sample in SAMPLES]
    binary = [(sample.oid, bytes.fromhex(sample.binary)) for sample in SAMPLES]
    found += [(oid, Format.BINARY, raw) for oid, raw in binary]
    found += _nested([raw for _, raw in binary], [oid for oid, _ in binary])
    for oid, form, raw in list(found):
        if form is Format.BINARY:
            try:
                found.append((oid, Format.TEXT, TYPES.text(oid, form)(raw).encode()))
            except ValueError:
                continue
    return found


VALUES = _samples()
VARIANT = pa.struct(
    [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={b"variant": b"true"})]
)
_SCALARS = (
    *(pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.binary(), pa.string()),
    *(pa.decimal128(5, 2), pa.decimal128(38, 0), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *(pa.time64("ns"), VARIANT),
)
WANTED = (
    *_SCALARS,
    *(pa.list_(kind) for kind in _SCALARS),
    pa.list_(pa.list_(pa.int64())),
    pa.struct([pa.field("a", pa.int32()), pa.field("other", pa.string())]),
)
"""Types that a query may want for a column."""
OIDS = [*BUILTIN, *(info.oid for info in USER_TYPES)]


unexpected: list[str] = []
"""The last block's errors that are not aiorepl's."""


def outcome(function: Callable[..., Any], *arguments: Any, known: tuple[type[Exception], ...] = ()) -> Any:
    """Return the result, or the text of one of aiorepl's errors. Any other error, such as one of pyarrow, is a finding.

    :param known: other errors that are documented.
    """
    try:
        return function(*arguments)
    except (AioreplError, *known) as error:
        return type(error).__name__, str(error)
    except Exception as error:  # noqa: BLE001 - this is what is looked for
        unexpected.append(f"{type(error).__name__}: {error}"[:200])
        return unexpected[-1]


def read(function: Callable[[bytes], Any], raw: bytes) -> Any:
    """Call a function of ``Types``; its errors are documented, but not aiorepl's, because they cannot name a column."""
    return outcome(function, raw, known=(Malformed, UnknownBinaryType))


def value(chance: random.Random) -> object:
    """One value of any type: as Python, and as JSON, typed or not, or as text."""
    oid, form, raw = chance.choice(VALUES)
    kind = chance.getrandbits(4)
    if kind:
        raw = damaged(chance, raw)
    if kind == 15:
        oid = chance.choice(OIDS)
    other = (TYPES.json_encoder(oid, form), TYPES.text(oid, form), TYPES.json_encoder(oid, form, typed=False))
    return read(TYPES.decoder(oid, form), raw), read(other[chance.getrandbits(8) % 3], raw)


def _rows(chance: random.Random) -> tuple[bytes, list[bytes]]:
    """A relation of a few columns, and rows of it with values of their types."""
    picked = [chance.choice(VALUES) for _ in range(1 + chance.getrandbits(2))]
    columns = [column(f"c{n}", oid, key=n == 0) for n, (oid, _, _) in enumerate(picked)]

    def row() -> list[object]:
        cells: list[object] = []
        for _, form, raw in picked:
            kind = chance.getrandbits(4)
            if kind == 0:
                cells.append(None)
            elif kind == 1:
                cells.append(UNCHANGED)
            else:
                data = damaged(chance, raw) if kind == 2 else raw
                cells.append(Binary(data) if form is Format.BINARY else data.decode("utf-8", "replace"))
        return cells

    relation = build.relation(oid=7, name="t", columns=columns, replica_identity=chance.choice("dfn"))
    made = [build.insert(relation=7, new=row()), build.update(relation=7, new=row())]
    made.append(build.update(relation=7, new=row(), old=row(), old_kind=chance.choice("KO")))
    made.append(build.delete(relation=7, old=row(), old_kind=chance.choice("KO")))
    return relation, made


def _told(part: Any) -> Iterator[object]:
    yield part.transaction, part.first, part.end_lsn, part.size
    for change in part.changes:
        yield change.kind, change.ordinal
        for name in ("key", "old", "new"):
            row = getattr(change, name, None)
            yield (
                None
                if row is None
                else (outcome(dict, row), outcome(list, getattr(change, f"raw_{name}", ())))
            )


def tuples(chance: random.Random) -> object:
    """Rows within a transaction: the messages, their tuples, rows and native events."""
    relation, rows = _rows(chance)
    payloads = [damaged(chance, row) if chance.getrandbits(1) else row for row in rows]
    decoder, told = Decoder(), []
    assembler = Assembler(TYPES, binary=True)
    native = NativeFormat()
    for payload in (build.begin(final_lsn=0x10, xid=3), relation, *payloads):
        message = outcome(decoder.decode, payload)
        for name in ("new", "old"):
            row = getattr(message, name, None)
            if row is not None and hasattr(row, "split"):
                told += [outcome(row.split), outcome(row.kinds), len(row)]
        if isinstance(message, tuple) and len(message) == 2 and message[0] == "ProtocolError":
            told.append(message)
            continue
        for part in outcome(assembler.feed, [message]):
            if isinstance(part, str):
                told.append(part)
                continue
            told += _told(part)
            told += [outcome(native.event, change) for change in part.changes]
    return told


def frames(chance: random.Random) -> object:
    """Frames of a server, cut into reads anywhere."""
    data = b"".join(
        chance.choice(
            (
                lambda: build_frame(b"d", b"w" + chance.randbytes(24 + chance.getrandbits(6))),
                lambda: build_frame(b"d", b"k" + chance.randbytes(17)),
                lambda: build_frame(
                    chance.choice((b"E", b"N", b"S", b"Z", b"c", b"T")),
                    chance.randbytes(chance.getrandbits(5)),
                ),
            )
        )()
        for _ in range(1 + chance.getrandbits(3))
    )
    if chance.getrandbits(1):
        data = damaged(chance, data)
    if chance.getrandbits(6) == 0:
        data += build_frame(chance.choice((b"E", b"N")), bytes(70_000))
    buffer, copied, inbox, told = FrameBuffer(65_536), CopyFrames(), [], []
    size = 1 + chance.getrandbits(chance.choice((3, 6, 13)))
    for at in range(0, len(data), size):
        piece = data[at : at + size]
        for each in (buffer, copied):
            try:
                each.space()[: len(piece)] = piece
                found = each.advance(len(piece), inbox) if each is buffer else copied.advance(len(piece))
                told.append(found)
            except AioreplError as error:
                told.append(str(error))
                return told
        if buffer.damage is not None:
            told.append(str(buffer.damage))
            break
    return (
        told,
        [[parts(each) for each in item] if isinstance(item, list) else item for item in inbox],
        bytes(copied.data),
    )


def parts(data: Any) -> object:
    """The payload of an XLogData."""
    return data.start, data.end, data.sent_at, data.payload


def build_frame(kind: bytes, body: bytes) -> bytes:
    """A message of the server."""
    return kind + (4 + len(body)).to_bytes(4, "big") + body


TRANSCRIPTS = list(runpy.run_path(str(HERE / "seeds.py"))["transcripts"]().values())


def stream(chance: random.Random) -> object:
    """Whole streams: decoded, assembled, printed, and written into blocks of a segment."""
    streaming, payloads = chance.choice(TRANSCRIPTS)
    payloads = list(payloads)
    for _ in range(chance.getrandbits(2)):
        at = chance.randrange(len(payloads))
        kind = chance.getrandbits(2)
        if kind == 0:
            del payloads[at : at + 1]
        elif kind == 1:
            payloads.insert(at, chance.choice(chance.choice(TRANSCRIPTS)[1]))
        else:
            payloads[at] = damaged(chance, payloads[at])
        if not payloads:
            break
    decoder = Decoder(streaming)
    assembler = Assembler(TYPES, binary=True, deliver_prepared=chance.getrandbits(1) == 1)
    native, builder, told = NativeFormat(boundaries=True), SegmentBuilder(200), []
    for payload in payloads:
        try:
            parts = assembler.feed([decoder.decode(payload)])
        except AioreplError as error:
            told.append(str(error))
            parts = assembler.take_slices()
            payloads = []
        for part in parts:
            told += _told(part)
            told += [outcome(native.lines, [part]), outcome(builder.add, part)]
        if not payloads:
            break
    assembler.in_progress.clear()
    if builder.open is None:
        told.append(builder.finish(Position("1", 1, "s", LSN(0x100)), after=LSN(1), epoch=1, part=0))
    return told, [bytes(piece) for piece in builder.take()]


def collected(chance: random.Random) -> object:
    """Blocks of rows: found, gathered by column, and made into Arrow arrays."""
    relation, rows = _rows(chance)
    described = Decoder().decode(relation)
    gathered = CollectedRows(Layout(described, TYPES))
    collector = gathered.collector()
    messages = [build.begin(final_lsn=100, xid=5), *rows * (1 + chance.getrandbits(1))]
    block = b"".join(len(payload).to_bytes(4, "big") + payload for payload in messages)
    if chance.getrandbits(1):
        block = damaged(chance, block)
    scanner = BlockScanner(block, 0, 0, 0, 0)
    told = [outcome(scanner.scan, {7: collector})]
    batch = outcome(gathered.batch, collector)
    if isinstance(batch, tuple | str):
        return told, batch
    outcome(partial(batch.validate, full=True))
    return told, [each.to_string() for each in batch.columns]


def typed(chance: random.Random) -> object:
    """Values as any type that a query may want, not only as their own."""
    oid, form, raw = chance.choice(VALUES)
    relation = Decoder().decode(build.relation(oid=7, name="t", columns=[column("c", oid)]))
    layout = Layout(relation, TYPES)
    wanted = chance.choice((*WANTED, arrow_type(oid, chance.choice((-1, 262_150)), TYPES)))
    known = FilledColumn(layout, 0, wanted, null=chance.getrandbits(1) == 1)
    sent = [damaged(chance, raw) if chance.getrandbits(1) else raw for _ in range(1 + chance.getrandbits(2))]
    return outcome(_array, known, form, sent), str(wanted)


def _array(known: FilledColumn, form: Format, sent: list[bytes]) -> object:
    refused: list[tuple[int, str]] = []
    made = known.make(form, len(sent))
    rows = b"".join(b"\0\1" + len(each).to_bytes(4, "big") + each for each in sent)
    fill([made], rows, 0, len(sent))
    array = known.array(made, len(sent), rows, lambda _: form, lambda row, text: refused.append((row, text)))
    array.validate(full=True)
    return array.to_string(), refused


def copied(chance: random.Random) -> object:
    """The rows of a COPY in binary, in one piece or damaged."""
    count = 1 + chance.getrandbits(2)
    rows = b"".join(
        count.to_bytes(2, "big")
        + b"".join(
            b"\xff" * 4 if chance.getrandbits(2) == 0 else (3).to_bytes(4, "big") + chance.randbytes(3)
            for _ in range(count)
        )
        for _ in range(chance.getrandbits(3))
    )
    data = SIGNATURE + bytes(8) + rows + b"\xff\xff"
    splitter, held = RowSplitter(count), bytearray(damaged(chance, data) if chance.getrandbits(1) else data)
    return outcome(splitter.take, held), splitter.ended, bytes(held)


TARGETS: dict[str, tuple[Callable[[random.Random], object], int]] = {
    "values": (value, 60),
    "tuples": (tuples, 3),
    "frames": (frames, 14),
    "streams": (stream, 4),
    "columns": (collected, 1),
    "typed": (typed, 2),
    "copy": (copied, 16),
}
TURNS = [name for name, (_, share) in TARGETS.items() for _ in range(share)]
random.Random(0).shuffle(TURNS)


def block(seed: int, number: int) -> tuple[str, list[str]]:
    """Return the target of a block and its outcomes."""
    name = TURNS[number % len(TURNS)]
    chance = random.Random(f"{seed} {number}")
    return name, [repr(TARGETS[name][0](chance)) for _ in range(BLOCK)]


def digests(seed: int, blocks: range) -> Iterator[str]:
    """The digest of each block, and its first unexpected error."""
    for number in blocks:
        unexpected.clear()
        _, told = block(seed, number)
        digest = hashlib.blake2b("\n".join(told).encode("utf-8", "surrogatepass"), digest_size=8)
        yield f"{digest.hexdigest()} {unexpected[0]!r}" if unexpected else digest.hexdigest()


def started(pure: bool, *arguments: object) -> subprocess.Popen[str]:
    """Start the program in one of the two forms."""
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"AIOREPL_PURE_PYTHON": "1" if pure else "0", "PYTHONHASHSEED": "0"},
    )


def compare(seed: int, inputs: int) -> tuple[Counter[str], list[str]]:
    """Run both forms over as many inputs; return how many each target has had, and the differences."""
    blocks = range(-(-inputs // BLOCK))
    done: Counter[str] = Counter()
    different: list[str] = []
    reported = 0
    workers = [started(pure, seed, 0, len(blocks)) for pure in (False, True)]
    for number, (one, other) in enumerate(itertools.zip_longest(*(worker.stdout for worker in workers))):
        name = TURNS[number % len(TURNS)]
        if one is None or other is None:
            different.append(f"a form has ended in block {number} of {name}")
            break
        done[name] += BLOCK
        if one == other and " " in one:
            different.append(f"{name}, block {number}: {one.strip()}")
        if one != other:
            different.append(_first_difference(seed, number, name))
        if number % 2000 == 1999:
            print(time.strftime("%H:%M:%S"), sum(done.values()), len(different), flush=True)
            print(*different[reported:], sep="\n", flush=True)
            reported = len(different)
    for worker in workers:
        worker.communicate()
    return done, different


def _first_difference(seed: int, number: int, name: str) -> str:
    told = [
        started(pure, seed, number, number + 1, "--outcomes").communicate()[0].splitlines()
        for pure in (False, True)
    ]
    for at, (one, other) in enumerate(itertools.zip_longest(*told)):
        if one != other:
            return f"{name}, block {number}, input {at}:\n  compiled {str(one)[:2000]}\n  plain    {str(other)[:2000]}"
    return f"{name}, block {number}: not found again"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--worker", nargs=3, type=int, metavar=("SEED", "FIRST", "END"))
    parser.add_argument("--outcomes", action="store_true")
    chosen = parser.parse_args()
    if chosen.worker:
        seed, first, end = chosen.worker
        assert (os.environ["AIOREPL_PURE_PYTHON"] == "0") is compiled.ACTIVE
        if chosen.outcomes:
            print("\n".join(line.replace("\n", "\\n") for line in block(seed, first)[1]))
            return
        for digest in digests(seed, range(first, end)):
            print(digest, flush=True)
        return
    begun = time.monotonic()
    done, different = compare(chosen.seed, chosen.inputs)
    print(
        f"seed {chosen.seed}: {sum(done.values())} inputs in {time.monotonic() - begun:.0f} s: {dict(done)}"
    )
    print(*different, sep="\n")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
