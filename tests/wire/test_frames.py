"""The byte stream is cut into frames of any size, wherever reads end, in memory that follows what has arrived."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import ProtocolError
from aiorepl.wire.frames import (
    LARGEST_ANSWER,
    LARGEST_FRAME,
    LARGEST_MESSAGE,
    Frame,
    FrameBuffer,
    Keepalive,
    XLogData,
)

MIB = 1024 * 1024


def feed(buffer: FrameBuffer, data: bytes) -> list:
    """Write to the buffer as a transport does, as much as fits at a time, and return the frames in order."""
    frames: list = []
    while data:
        space = buffer.space()
        count = min(len(space), len(data))
        assert count > 0
        space[:count] = data[:count]
        inbox: list = []
        others = buffer.advance(count, inbox)
        for index, item in enumerate([*inbox, []]):
            frames += [frame for at, frame in others if at == index and isinstance(frame, Frame)]
            frames += item if isinstance(item, list) else [item]
        data = data[count:]
    return frames


@pytest.fixture
def recorded(backend) -> bytes:
    """A server's messages from the answer to START_REPLICATION to the end of the stream."""
    return b"".join(
        [
            backend.COPY_BOTH,
            backend.xlog(b"first", 1, 2, -3),
            backend.xlog(b"", 2**64 - 1, 2**64 - 1, 2**63 - 1),
            backend.keepalive(2**64 - 1, -(2**63), reply=True),
            backend.keepalive(7),
            backend.error("N", S="NOTICE", M="noted"),
            backend.xlog(b"\0" * 40, 8, 9),
            backend.COPY_DONE,
            backend.frame("C", b"COPY 0\0"),
            backend.READY,
        ]
    )


EXPECTED = [
    Frame("W", b"\0\0\0"),
    XLogData(1, 2, -3, b"first"),
    XLogData(2**64 - 1, 2**64 - 1, 2**63 - 1, b""),
    Keepalive(2**64 - 1, -(2**63), True),
    Keepalive(7, 0, False),
    Frame("N", b"SNOTICE\0Mnoted\0\0"),
    XLogData(8, 9, 3, b"\0" * 40),
    Frame("c", b""),
    Frame("C", b"COPY 0\0"),
    Frame("Z", b"I"),
]


def test_in_one_read(recorded):
    """A recording that is read at once gives every frame."""
    buffer = FrameBuffer()

    assert EXPECTED == feed(buffer, recorded)
    assert 0 == buffer.pending


@pytest.mark.parametrize("size", [1, 50, 10_000])
def test_inbox(recorded, size):
    """Consecutive XLogData are one list, across reads; other frames end it, with their index in the inbox."""
    buffer, inbox, others = FrameBuffer(), [], []
    for at in range(0, len(recorded), size):
        part = recorded[at : at + size]
        buffer.space()[: len(part)] = part
        others += buffer.advance(len(part), inbox)

    first, second, keepalive, other, third = (EXPECTED[index] for index in (1, 2, 3, 4, 6))
    assert [[first, second], keepalive, other, [third]] == inbox
    assert [(0, "W"), (1, keepalive), (2, other), (3, "N"), (4, "c"), (4, "C"), (4, "Z")] == [
        (index, frame.kind if isinstance(frame, Frame) else frame) for index, frame in others
    ]
    assert 5 == buffer.received


def test_xlog_data_after_another_frame(backend):
    """XLogData after a notice begins a new list, so that the notice's index lies between them."""
    buffer, inbox = FrameBuffer(), []
    data = backend.xlog(b"a") + backend.error("N", M="m") + backend.xlog(b"b")
    buffer.space()[: len(data)] = data
    ((index, _),) = buffer.advance(len(data), inbox)

    assert (1, [b"b"]) == (index, [frame.payload for frame in inbox[index]])


def test_one_byte_at_a_time(recorded):
    """A frame is returned with its last byte."""
    buffer = FrameBuffer()

    assert EXPECTED == [frame for byte in recorded for frame in feed(buffer, bytes([byte]))]


def test_every_split(recorded):
    """A recording in two reads, split at any byte, gives the same frames."""
    for at in range(1, len(recorded)):
        buffer = FrameBuffer()
        frames = feed(buffer, recorded[:at])
        assert EXPECTED == frames + feed(buffer, recorded[at:]), f"split at {at}"


@given(st.lists(st.binary(max_size=300), max_size=30), st.lists(st.integers(0, 9000), max_size=20))
def test_any_frames_in_any_reads(bodies, cuts):
    """Any frames in any reads are returned unchanged."""
    data = b"".join(b"d" + struct.pack(">I", 29 + len(body)) + b"w" + bytes(24) + body for body in bodies)
    hosts = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    buffer = FrameBuffer()

    frames = [f for start, end in pairwise(hosts) for f in feed(buffer, data[start:end])]

    assert bodies == [frame.payload for frame in frames]


def test_payloads_are_their_own(backend):
    """A payload does not change when the buffer is used again."""
    buffer = FrameBuffer()
    (kept,) = feed(buffer, backend.xlog(b"first"))
    feed(buffer, backend.xlog(b"other"))

    assert (b"first", bytes) == (kept.payload, type(kept.payload))


@pytest.mark.parametrize("size", [300_000, 5 * MIB])
def test_a_huge_frame(backend, size):
    """A frame larger than the buffer is returned whole, and so is the next one."""
    payload = bytes(range(256)) * (size // 256)
    buffer = FrameBuffer()

    frames = feed(buffer, backend.xlog(payload) + backend.keepalive(9))

    assert [XLogData(1, 2, 3, payload), Keepalive(9, 0, False)] == frames


def test_a_huge_frame_while_a_view_is_held(backend):
    """If the transport still holds a view of the memory, the buffer takes other memory to grow."""
    buffer, payload = FrameBuffer(), b"0123456789abcdef" * MIB
    views = [buffer.space()]
    data = backend.xlog(payload, 1, 2)

    frames: list = []
    for at in range(0, len(data), MIB):
        frames += feed(buffer, data[at : at + MIB])
        views.append(buffer.space())

    assert [payload] == [frame.payload for frame in frames]


def test_room_stays_while_frames_are_large(backend):
    """The buffer keeps the size that a large frame needed until small ones follow."""
    buffer = FrameBuffer()
    usual = len(buffer.space())
    large = backend.xlog(bytes(MIB))

    assert 3 == len(feed(buffer, large + large + large))
    assert len(large) < len(buffer.space())
    feed(buffer, backend.xlog(b"small"))

    assert usual == len(buffer.space())


def test_room_for_the_largest_does_not_stay(backend):
    """Above a few megabytes the buffer shrinks at once."""
    buffer = FrameBuffer()
    usual = len(buffer.space())

    assert 1 == len(feed(buffer, backend.xlog(bytes(9 * MIB))))

    assert usual == len(buffer.space())


def test_room_for_the_largest_does_not_stay_for_the_next_frame(backend):
    """Its memory is freed, although the beginning of the next frame is in it."""
    buffer = FrameBuffer()
    usual = len(buffer.space())
    following = backend.xlog(b"small")

    assert 1 == len(feed(buffer, backend.xlog(bytes(9 * MIB)) + following[:7]))
    assert usual - 7 == len(buffer.space())
    assert [b"small"] == [frame.payload for frame in feed(buffer, following[7:])]


def test_memory_follows_what_arrived():
    """A frame that claims a gigabyte uses memory for the bytes that have arrived."""
    buffer = FrameBuffer()
    tracemalloc.start()
    try:
        feed(buffer, b"d" + struct.pack(">I", LARGEST_FRAME) + b"w" + bytes(MIB))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert MIB + 6 == buffer.pending
    assert peak < 8 * MIB


@pytest.mark.parametrize("kind", ["E", "N"])
@pytest.mark.parametrize("read", [1_000, 65_536, 20 * MIB])
def test_an_error_of_any_size(backend, kind, read):
    """An error or notice is cut at its limit, and the frame after it is whole."""
    data = (
        backend.xlog(b"before")
        + backend.error(kind, C="XX000", M="m" * (20 * MIB if read > 1_000 else MIB))
        + backend.READY
    )
    buffer = FrameBuffer()
    usual = len(buffer.space())
    frames: list = []
    tracemalloc.start()
    try:
        for at in range(0, len(data), read):
            frames += feed(buffer, data[at : at + read])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [b"before", kind, "Z"] == [frames[0].payload, *(frame.kind for frame in frames[1:])]
    assert (LARGEST_MESSAGE, b"CXX000\0Mmmm") == (len(frames[1].body), frames[1].body[:11])
    assert (0, usual) == (buffer.pending, len(buffer.space()))
    assert peak < 2 * MIB or read > MIB


@pytest.mark.parametrize("kind", [b"T", b"D", b"S", b"\x7f"])
def test_an_answer_has_a_limit(backend, kind):
    """A frame that is not CopyData has a lower limit than a row."""
    buffer = FrameBuffer()
    feed(buffer, backend.xlog(b"good") + kind + struct.pack(">I", LARGEST_ANSWER + 1) + b"more")
    assert f"claims {LARGEST_ANSWER + 1} bytes" in str(buffer.damage)

    buffer = FrameBuffer()
    feed(buffer, kind + struct.pack(">I", LARGEST_ANSWER) + b"more")
    assert buffer.damage is None


def test_a_keepalive_is_not_waited_for(backend):
    """A keepalive of the wrong length is an error before all of it has arrived."""
    buffer = FrameBuffer()
    feed(buffer, b"d" + struct.pack(">I", 1000) + b"k")
    assert "Keepalive: has 996 bytes, not 18" == str(buffer.damage)


def test_memory_is_given_back(backend):
    """After a huge frame the buffer is as small as before, even if the beginning of the next frame came with its end."""
    alone, followed = FrameBuffer(), FrameBuffer()
    usual = len(alone.space())
    huge, small = backend.xlog(bytes(8 * MIB)), backend.xlog(bytes(100))

    feed(alone, huge)
    assert usual == len(alone.space())

    feed(followed, huge + small[:10])
    frames = feed(followed, small[10:])
    assert 1 == len(frames)
    assert usual == len(followed.space())


def test_there_is_always_room(backend):
    """``space`` never returns an empty buffer or a copy, however full the buffer is."""
    buffer = FrameBuffer(size=1)
    data = backend.xlog(bytes(3 * MIB))
    for at in range(0, len(data), 65_537):
        space = buffer.space()
        assert len(space) >= 16_384
        assert isinstance(space, memoryview)
        feed(buffer, data[at : at + 65_537])
    assert 0 == buffer.pending


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (b"d\0\0\0\3", "frame d.length: claims 3 bytes"),
        (b"d\0\0\0\0", "frame d.length: claims 0 bytes"),
        (b"d\x40\0\0\0", "frame d.length: claims 1073741824 bytes"),
        (b"d\xff\xff\xff\xff", "frame d.length: claims 4294967295 bytes"),
        (b"\x16\x80\0\0\0", "frame 0x16.length: claims 2147483648 bytes"),
        (b"d\0\0\0\4", "CopyData: an empty replication message"),
        (b"d\0\0\0\5x", "CopyData: unknown replication message 'x'"),
        (b"d\0\0\0\5\0", "CopyData: unknown replication message '0x00'"),
        (b"d\0\0\0\5w", "XLogData: has 1 bytes, fewer than its header"),
        (b"d\0\0\0\x1cw" + bytes(23), "XLogData: has 24 bytes, fewer than its header"),
        (b"d\0\0\0\5k", "Keepalive: has 1 bytes, not 18"),
        (b"d\0\0\0\x17k" + bytes(18), "Keepalive: has 19 bytes, not 18"),
    ],
)
def test_damage(backend, bad, expected):
    """An invalid frame is reported with its problem; earlier frames are returned, later ones are not."""
    buffer = FrameBuffer()
    assert buffer.damage is None

    frames = feed(buffer, backend.xlog(b"good") + bad + backend.xlog(b"lost"))

    assert [b"good"] == [frame.payload for frame in frames]
    assert isinstance(buffer.damage, ProtocolError)
    assert expected == str(buffer.damage)
    assert [] == feed(buffer, backend.xlog(b"lost"))


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes(reads):
    """Any bytes give frames or damage, and no exception."""
    buffer = FrameBuffer()

    for read in reads:
        assert all(isinstance(frame, XLogData | Keepalive | Frame) for frame in feed(buffer, read))


def test_no_frame_shows_what_it_contains(backend):
    """The repr of a frame has its kind and length only."""
    frames = feed(FrameBuffer(), backend.xlog(b"s3cr3t") + backend.frame("D", b"s3cr3t"))

    assert ["<XLogData of 6 bytes>", "<Frame 'D' of 6 bytes>"] == [repr(frame) for frame in frames]
