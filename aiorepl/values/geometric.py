"""Geometric types: point, line, lseg, box, path, polygon, circle.

Python values are tuples of floats, nested as the type is:

    point    (x, y)                         line     (A, B, C) of Ax + By + C = 0
    lseg     (point, point)                 box      (upper right point, lower left point)
    polygon  (point, …)                     circle   (point, radius)
    path     ``Path(closed, points)``

Source: geo_ops.c, ``point_send`` and its neighbours, ``path_encode``.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from aiorepl.values.codec import Malformed, codec, quoted
from aiorepl.values.floats import float8_text

Point = tuple[float, float]

_POINT: Final = struct.Struct("!2d")
_LINE: Final = struct.Struct("!3d")
_CIRCLE: Final = struct.Struct("!3d")
_SEGMENT: Final = struct.Struct("!4d")
_COUNT: Final = struct.Struct("!i")
_BRACKETS: Final = b"()[]<>{}"


class Path(NamedTuple):
    """A path: ``closed`` tells whether its last point is joined to the first."""

    closed: bool
    points: tuple[Point, ...]


def _numbers(raw: bytes) -> list[float]:
    return [float(part) for part in raw.translate(None, _BRACKETS).split(b",")]


def _pair(numbers: list[float]) -> tuple[Point, ...]:
    if len(numbers) % 2:
        raise Malformed("a point without y")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _read_point(raw: bytes) -> Point:
    x, y = _numbers(raw)
    return x, y


def _read_line(raw: bytes) -> tuple[float, float, float]:
    a, b, c = _numbers(raw)
    return a, b, c


def _read_segment(raw: bytes) -> tuple[Point, Point]:
    first, second = _pair(_numbers(raw))
    return first, second


def _read_points(raw: bytes) -> tuple[Point, ...]:
    return _pair(_numbers(raw))


def _read_path(raw: bytes) -> Path:
    return Path(raw[:1] == b"(", _read_points(raw))


def _read_circle(raw: bytes) -> tuple[Point, float]:
    x, y, radius = _numbers(raw)
    return (x, y), radius


def _read_point_binary(raw: bytes) -> Point:
    x, y = _POINT.unpack(raw)
    return x, y


def _read_line_binary(raw: bytes) -> tuple[float, float, float]:
    a, b, c = _LINE.unpack(raw)
    return a, b, c


def _read_segment_binary(raw: bytes) -> tuple[Point, Point]:
    x1, y1, x2, y2 = _SEGMENT.unpack(raw)
    return (x1, y1), (x2, y2)


def _read_points_binary(raw: bytes) -> tuple[Point, ...]:
    """A count, then so many points."""
    (count,) = _COUNT.unpack_from(raw)
    if count < 0 or len(raw) != _COUNT.size + count * _POINT.size:
        raise Malformed("the number of points does not fit the length")
    return _pair(list(struct.unpack_from(f"!{2 * count}d", raw, _COUNT.size)))


def _read_path_binary(raw: bytes) -> Path:
    """A byte that tells whether it is closed, then as a polygon."""
    if raw[0] > 1:
        raise Malformed("neither open nor closed")
    return Path(raw[0] == 1, _read_points_binary(raw[1:]))


def _read_circle_binary(raw: bytes) -> tuple[Point, float]:
    x, y, radius = _CIRCLE.unpack(raw)
    return (x, y), radius


def _print(point: Point) -> str:
    return f"({float8_text(point[0])},{float8_text(point[1])})"


def _print_point(raw: bytes) -> str:
    return _print(_read_point_binary(raw))


def _print_line(raw: bytes) -> str:
    return "{" + ",".join(map(float8_text, _read_line_binary(raw))) + "}"


def _print_lseg(raw: bytes) -> str:
    return f"[{_print_box(raw)}]"


def _print_box(raw: bytes) -> str:
    return ",".join(map(_print, _read_segment_binary(raw)))


def _print_polygon(raw: bytes) -> str:
    return f"({','.join(map(_print, _read_points_binary(raw)))})"


def _print_path(raw: bytes) -> str:
    closed, points = _read_path_binary(raw)
    text = ",".join(map(_print, points))
    return f"({text})" if closed else f"[{text}]"


def _print_circle(raw: bytes) -> str:
    center, radius = _read_circle_binary(raw)
    return f"<{_print(center)},{float8_text(radius)}>"


CODECS: Final = {
    "point": codec(_read_point, _read_point_binary, _print_point, quoted),
    "line": codec(_read_line, _read_line_binary, _print_line, quoted),
    "lseg": codec(_read_segment, _read_segment_binary, _print_lseg, quoted),
    "box": codec(_read_segment, _read_segment_binary, _print_box, quoted),
    "path": codec(_read_path, _read_path_binary, _print_path, quoted),
    "polygon": codec(_read_points, _read_points_binary, _print_polygon, quoted),
    "circle": codec(_read_circle, _read_circle_binary, _print_circle, quoted),
}
