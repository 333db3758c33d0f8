cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport delimiters
from aiorepl.values.forms cimport AsSent, Binary, Container

cdef Py_ssize_t _MAX_DIMENSIONS, _HEADER, _DIMENSION, _LENGTH
cdef bytes _QUOTED


cdef class Array(Container):
    cdef Binary _element
    cdef bytes _delimiter, _needs_quotes

    @cython.locals(
        data="const unsigned char*", dimensions=Py_ssize_t, at=Py_ssize_t, total=Py_ssize_t, length=Py_ssize_t,
    )
    cpdef Py_ssize_t expansion(self, bytes raw, Py_ssize_t start, Py_ssize_t end) except -1

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


# Declared as object, so that its methods are bound Python methods.
@cython.locals(text=object)
cpdef object vector(object element)
