cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport delimiters
from aiorepl.values.forms cimport AsSent, Form
from aiorepl.values.styles cimport put_styled

cdef Py_ssize_t _MAX_DIMENSIONS
cdef unsigned char _OPEN, _CLOSE, _QUOTE, _BOUNDS
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
