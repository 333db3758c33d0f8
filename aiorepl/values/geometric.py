"""Geometric types: point, line, lseg, box, path, polygon, circle.

Python values are tuples of floats, nested as the type is:

    point    (x, y)                         line     (A, B, C) of Ax + By + C = 0
    lseg     (point, point)                 box      (upper right point, lower left point)
    polygon  (point, …)                     circle   (point, radius)
    path     ``Path(closed, points)``

Source: geo_ops.c, ``point_send`` and its neighbours, ``path_encode``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from aiorepl import byteops
from aiorepl.values.codec import Malformed, form_codec
from aiorepl.values.floats import put_float8
from aiorepl.values.forms import Binary, Form

Point = tuple[float, float]

_COMMA = 0x2C  # a C constant in the compiled form


class Path(NamedTuple):
    """A path: ``closed`` tells whether its last point is joined to the first."""

    closed: bool
    points: tuple[Point, ...]


class Geometry(Binary):
    """A type made of a fixed number of floats; 0: any even number."""

    def __init__(self, floats: int) -> None:
        self.floats = floats

    def value(self, numbers: list[float]) -> Any:
        """Return the Python value."""
        raise NotImplementedError

    def start(self, raw: bytes) -> int:
        """Return where the floats begin, after verifying their number."""
        if len(raw) != 8 * self.floats:
            raise ValueError
        return 0

    def read(self, raw: bytes) -> Any:
        return self.value(_numbers(raw, self.start(raw)))


class GeometryText(Form):
    """Floats separated by commas, with brackets around groups of them."""

    def __init__(self, figure: Geometry) -> None:
        self._figure = figure

    def read(self, raw: bytes) -> Any:
        numbers = _parsed(raw)
        if self._figure.floats and len(numbers) != self._figure.floats:
            raise ValueError
        return self._figure.value(numbers)


class Points(Geometry):
    """point, lseg and box: a fixed number of points, in brackets except for point and box."""

    def __init__(self, count: int, before: bytes, after: bytes) -> None:
        super().__init__(2 * count)
        self._before = before
        self._after = after

    def value(self, numbers: list[float]) -> Any:
        if self.floats == 2:
            return numbers[0], numbers[1]
        return (numbers[0], numbers[1]), (numbers[2], numbers[3])

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, self._before)
        _put_points(out, raw, self.start(raw), self.floats // 2)
        byteops.put(out, self._after)


class Line(Geometry):
    """line: its three coefficients."""

    def value(self, numbers: list[float]) -> Any:
        return numbers[0], numbers[1], numbers[2]

    def put(self, out: bytearray, raw: bytes) -> None:
        self.start(raw)
        data: Any = raw  # a pointer in the compiled form
        byteops.put(out, b"{")
        put_float8(out, byteops.float64(data, 0))
        byteops.put(out, b",")
        put_float8(out, byteops.float64(data, 8))
        byteops.put(out, b",")
        put_float8(out, byteops.float64(data, 16))
        byteops.put(out, b"}")


class Circle(Geometry):
    """circle: its centre and radius."""

    def value(self, numbers: list[float]) -> Any:
        return (numbers[0], numbers[1]), numbers[2]

    def put(self, out: bytearray, raw: bytes) -> None:
        byteops.put(out, b"<")
        _put_points(out, raw, self.start(raw), 1)
        byteops.put(out, b",")
        data: Any = raw  # a pointer in the compiled form
        put_float8(out, byteops.float64(data, 16))
        byteops.put(out, b">")


class Polygon(Geometry):
    """polygon: a count of points, and the points."""

    def value(self, numbers: list[float]) -> Any:
        return _pairs(numbers)

    def start(self, raw: bytes) -> int:
        return _after_count(raw, 0)

    def put(self, out: bytearray, raw: bytes) -> None:
        start = self.start(raw)
        byteops.put(out, b"(")
        _put_points(out, raw, start, (len(raw) - start) // 16)
        byteops.put(out, b")")


class PathBinary(Geometry):
    """path: a byte that is 1 if it is closed, then as a polygon."""

    def start(self, raw: bytes) -> int:
        if not raw or raw[0] > 1:
            raise Malformed("neither open nor closed")
        return _after_count(raw, 1)

    def read(self, raw: bytes) -> Any:
        points = _pairs(_numbers(raw, self.start(raw)))
        return Path(raw[0] == 1, points)

    def put(self, out: bytearray, raw: bytes) -> None:
        start = self.start(raw)
        byteops.put(out, b"(" if raw[0] else b"[")
        _put_points(out, raw, start, (len(raw) - start) // 16)
        byteops.put(out, b")" if raw[0] else b"]")


class PathText(Form):
    """path: parentheses for a closed one, square brackets for an open one."""

    def read(self, raw: bytes) -> Any:
        return Path(byteops.has_at(raw, 0, b"("), _pairs(_parsed(raw)))


def _after_count(raw: bytes, at: int) -> int:
    """Return where the points begin, after verifying their count, which is at ``at``."""
    size = len(raw)
    if size < at + 4:
        raise ValueError
    data: Any = raw  # a pointer in the compiled form
    count = byteops.int32(data, at)
    if count < 0 or size != at + 4 + 16 * count:
        raise Malformed("the number of points does not fit the length")
    return at + 4


def _numbers(raw: bytes, start: int) -> list[float]:
    """Return the floats from ``start`` to the end."""
    data: Any = raw  # a pointer in the compiled form
    return [byteops.float64(data, at) for at in range(start, len(raw), 8)]


def _parsed(raw: bytes) -> list[float]:
    """Return the floats of a text, without its brackets."""
    numbers = []
    size = len(raw)
    data: Any = raw  # a pointer in the compiled form
    start = 0
    for at in range(size + 1):
        if at < size and data[at] != _COMMA:
            continue
        end = at
        while start < end and _is_bracket(data[start]):
            start += 1
        while start < end and _is_bracket(data[end - 1]):
            end -= 1
        numbers.append(byteops.decimal(raw, start, end))
        start = at + 1
    return numbers


def _is_bracket(byte: int) -> bool:
    return byte in b"()[]<>{}"


def _pairs(numbers: list[float]) -> tuple[Point, ...]:
    if len(numbers) % 2:
        raise Malformed("a point without y")
    return tuple([(numbers[at], numbers[at + 1]) for at in range(0, len(numbers), 2)])


def _put_points(out: bytearray, raw: bytes, start: int, count: int) -> None:
    data: Any = raw  # a pointer in the compiled form
    for index in range(count):
        byteops.put(out, b",(" if index else b"(")
        put_float8(out, byteops.float64(data, start + 16 * index))
        byteops.put(out, b",")
        put_float8(out, byteops.float64(data, start + 16 * index + 8))
        byteops.put(out, b")")


_POINT: Final = Points(1, b"", b"")
_SEGMENT: Final = Points(2, b"[", b"]")
_BOX: Final = Points(2, b"", b"")
_LINE: Final = Line(3)
_CIRCLE: Final = Circle(3)
_POLYGON: Final = Polygon(0)

CODECS: Final = {
    "point": form_codec(GeometryText(_POINT), _POINT),
    "line": form_codec(GeometryText(_LINE), _LINE),
    "lseg": form_codec(GeometryText(_SEGMENT), _SEGMENT),
    "box": form_codec(GeometryText(_BOX), _BOX),
    "path": form_codec(PathText(), PathBinary(0)),
    "polygon": form_codec(GeometryText(_POLYGON), _POLYGON),
    "circle": form_codec(GeometryText(_CIRCLE), _CIRCLE),
}
