cimport cython

from aiorepl cimport byteops
from aiorepl.values.floats cimport put_float4, put_float8
from aiorepl.values.forms cimport Binary, Form

cdef Py_ssize_t _FEW_DIGITS
cdef unsigned int _POSITIVE, _NEGATIVE, _DIGIT_BASE, _MAX_DISPLAY_SCALE
cdef unsigned char _T, _F


cdef class Integer(Binary):
    cdef Py_ssize_t _width
    cdef bint _signed

    @cython.locals(data="const unsigned char*")
    cdef long long number(self, bytes raw, Py_ssize_t start, Py_ssize_t end) except? -1


cdef class IntegerText(Form):
    cpdef object read(self, bytes raw)


cdef class Float4(Binary):
    pass


cdef class Float4Text(Form):
    pass


cdef class Float8(Binary):
    pass


cdef class Float8Text(Form):
    pass


cdef class Numeric(Binary):
    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, count=Py_ssize_t, weight=Py_ssize_t, sign="unsigned int",
        scale=Py_ssize_t, at=Py_ssize_t, digit="unsigned int", begun=bint,
    )
    cpdef void put(self, bytearray out, bytes raw) except *

    @cython.locals(data="const unsigned char*", digits=Py_ssize_t)
    cpdef Py_ssize_t expansion(self, bytes raw, Py_ssize_t start, Py_ssize_t end) except -1


cdef class NumericText(Form):
    pass


cdef class Money(Binary):
    @cython.locals(
        data="const unsigned char*", cents="long long", size="unsigned long long", rest="unsigned long long",
        group="unsigned long long",
    )
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class Boolean(Binary):
    pass


cdef class BooleanText(Form):
    pass


@cython.locals(data="const unsigned char*")
cdef double _float4(bytes raw) except? -1

@cython.locals(data="const unsigned char*")
cdef double _float8(bytes raw) except? -1

@cython.locals(data="const unsigned char*")
cdef bint _is_finite(bytes raw, unsigned int mask) except -1

cdef bint _truth(bytes raw, unsigned char true, unsigned char false) except -1
