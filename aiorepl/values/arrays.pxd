cimport cython

from aiorepl cimport octets
from aiorepl.values cimport marks
from aiorepl.values.forms cimport AsSent, Binary, Composed, Form
from aiorepl.values.styles cimport put_styled

cdef Py_ssize_t _MAX_DIMENSIONS, _HEADER, _DIMENSION, _LENGTH
cdef unsigned char _OPEN, _CLOSE, _QUOTE, _BACKSLASH, _BOUNDS
cdef bytes _QUOTED


cdef class ArrayText(AsSent):
    cdef Form _element
    cdef unsigned char _delimiter, _style
    cdef object _encode
    cdef bytes _ends

    cdef int _whole(self, bytes raw, list values, bytearray out) except -1

    @cython.locals(data="const unsigned char*", size=Py_ssize_t, mark="unsigned char")
    cdef Py_ssize_t _list(self, bytes raw, Py_ssize_t at, Py_ssize_t depth, list values, bytearray out) except -1

    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, mark="unsigned char", inner=list, end=Py_ssize_t, element=bytes
    )
    cdef Py_ssize_t _item(self, bytes raw, Py_ssize_t at, Py_ssize_t depth, list values, bytearray out) except -1

    cdef int _element_in(self, bytes raw, Py_ssize_t start, Py_ssize_t end, list values, bytearray out) except -1


cdef bint _is_null(const unsigned char* data, Py_ssize_t at) noexcept


cdef class Array(Composed):
    cdef Binary _element
    cdef bytes _delimiter, _needs_quotes

    @cython.locals(
        data="const unsigned char*", inmost=bint, inner=list, length=Py_ssize_t, _=Py_ssize_t
    )
    cdef Py_ssize_t _read_level(self, bytes raw, Py_ssize_t at, Py_ssize_t level, list values) except -1

    @cython.locals(data="const unsigned char*", inmost=bint, index=Py_ssize_t, length=Py_ssize_t)
    cdef Py_ssize_t _put_level(self, bytearray out, bytes raw, Py_ssize_t at, Py_ssize_t level, bint json) except -1

    @cython.locals(start=Py_ssize_t, size=Py_ssize_t, data="const unsigned char*", text=bytes)
    cdef int _put_element(self, bytearray out, bytes raw) except -1


@cython.locals(size=Py_ssize_t)
cdef bint _looks_special(bytearray out, Py_ssize_t start) except -1

@cython.locals(
    data="const unsigned char*", dimensions=Py_ssize_t, rest=Py_ssize_t, most=Py_ssize_t, total=Py_ssize_t, none=bint,
    level=Py_ssize_t, size=Py_ssize_t,
)
cdef Py_ssize_t _count(bytes raw) except -1

@cython.locals(data="const unsigned char*")
cdef Py_ssize_t _first(bytes raw) noexcept

@cython.locals(data="const unsigned char*", rest=Py_ssize_t, length=Py_ssize_t)
cdef Py_ssize_t _length(bytes raw, Py_ssize_t at) except -2

cdef int _whole(bytes raw, Py_ssize_t end) except -1

@cython.locals(data="const unsigned char*", dimensions=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t, lower=Py_ssize_t)
cdef void _put_bounds(bytearray out, bytes raw) except *


cdef class VectorText(AsSent):
    pass


cdef class Vector(Array):
    pass
