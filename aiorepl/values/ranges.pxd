cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport delimiters, objects
from aiorepl.values.composites cimport field_end, put_field, read_field
from aiorepl.values.forms cimport Binary, Container, Form

cdef unsigned int _EMPTY, _LOWER_INC, _UPPER_INC, _LOWER_INF, _UPPER_INF, _SENT
cdef unsigned char _INC_OPEN, _EXC_OPEN, _INC_CLOSE, _EXC_CLOSE, _COMMA, _OPEN, _CLOSE
cdef Py_ssize_t _LENGTH
cdef bytes _ENDS, _NEEDS_QUOTES


cdef object _range(object lower, object upper, bint lower_inc, bint upper_inc)


cdef class RangeText(Form):
    cdef Form _subtype

    @cython.locals(data="const unsigned char*", comma=Py_ssize_t, end=Py_ssize_t)
    cpdef object read(self, bytes raw)


@cython.locals(data="const unsigned char*", size=Py_ssize_t, comma=Py_ssize_t, end=Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t) _bounds(bytes raw, Py_ssize_t at) except *


cdef class RangeBinary(Container):
    cdef Binary _subtype

    @cython.locals(lower_end=Py_ssize_t, flags="unsigned int")
    cpdef object read(self, bytes raw)

    @cython.locals(data="const unsigned char*", lower_end=Py_ssize_t, flags="unsigned int")
    cpdef void put(self, bytearray out, bytes raw) except *


@cython.locals(data="const unsigned char*", total=Py_ssize_t, length=Py_ssize_t)
cdef Py_ssize_t _swelling(Binary of, bytes raw, Py_ssize_t at, Py_ssize_t end) except -1

@cython.locals(data="const unsigned char*", size=Py_ssize_t, flags="unsigned int", at=Py_ssize_t)
cdef (Py_ssize_t, Py_ssize_t) _lower_end(bytes raw) except *

@cython.locals(data="const unsigned char*", rest=Py_ssize_t, length=Py_ssize_t)
cdef Py_ssize_t _item_end(bytes raw, Py_ssize_t at) except -1


cdef class MultirangeText(Form):
    cdef Form _range

    @cython.locals(ranges=list, at=Py_ssize_t, end=Py_ssize_t)
    cpdef object read(self, bytes raw)


cdef Py_ssize_t _range_end(bytes raw, Py_ssize_t at) except -1


cdef class MultirangeBinary(Container):
    cdef Binary _range

    @cython.locals(ranges=list, at=Py_ssize_t, end=Py_ssize_t, _=Py_ssize_t)
    cpdef object read(self, bytes raw)

    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, index=Py_ssize_t)
    cpdef void put(self, bytearray out, bytes raw) except *


@cython.locals(data="const unsigned char*", rest=Py_ssize_t, count=Py_ssize_t)
cdef Py_ssize_t _count(bytes raw) except -1

cdef int _whole(bytes raw, Py_ssize_t end) except -1
