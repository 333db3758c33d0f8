"""Column values: from a type's text or binary form to Python, to JSON and to PostgreSQL's text. One file per family of types.

Pure: no sockets, no loop, no clock, no catalog look-ups.
"""

from aiorepl import compiled

__path__ = compiled.path_of(__name__, __path__)

from aiorepl.values.codec import Format, Malformed, UnknownBinaryType
from aiorepl.values.intervals import Interval
from aiorepl.values.ranges import Range
from aiorepl.values.registry import Types
from aiorepl.values.types import TypeInfo

__all__ = ["Format", "Interval", "Malformed", "Range", "TypeInfo", "Types", "UnknownBinaryType"]
