cimport cython

from aiorepl cimport byteops
from aiorepl.values.floats cimport put_float8
from aiorepl.values.forms cimport Binary, Form

cdef unsigned char _COMMA


cdef class Geometry(Binary):
    cdef Py_ssize_t floats

    cdef object value(self, list numbers)
    cdef Py_ssize_t start(self, bytes raw) except -1


cdef class GeometryText(Form):
    cdef Geometry _figure

    @cython.locals(numbers=list)
    cpdef object read(self, bytes raw)


cdef class Points(Geometry):
    cdef bytes _before, _after


cdef class Line(Geometry):
    @cython.locals(data="const unsigned char*")
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class Circle(Geometry):
    @cython.locals(data="const unsigned char*")
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class Polygon(Geometry):
    @cython.locals(start=Py_ssize_t)
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class PathBinary(Geometry):
    @cython.locals(start=Py_ssize_t)
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class PathText(Form):
    pass


@cython.locals(data="const unsigned char*", size=Py_ssize_t, count=Py_ssize_t)
cdef Py_ssize_t _after_count(bytes raw, Py_ssize_t at) except -1

@cython.locals(data="const unsigned char*", at=Py_ssize_t)
cdef list _numbers(bytes raw, Py_ssize_t start)

@cython.locals(
    data="const unsigned char*", numbers=list, size=Py_ssize_t, start=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t,
)
cdef list _parsed(bytes raw)

cdef bint _is_bracket(unsigned char byte) noexcept

@cython.locals(at=Py_ssize_t)
cdef tuple _pairs(list numbers)

@cython.locals(data="const unsigned char*", index=Py_ssize_t)
cdef void _put_points(bytearray out, bytes raw, Py_ssize_t start, Py_ssize_t count) except *
