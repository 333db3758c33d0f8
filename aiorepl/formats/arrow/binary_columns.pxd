cimport cython

from aiorepl cimport byteops
from aiorepl.values.forms cimport Binary

cdef Py_ssize_t _NULL
cdef long long _INT32_LEAST, _INT32_MOST, _INT64_LEAST, _INT64_MOST
cdef long long _DAYS_TO_2000, _MICROSECONDS_TO_2000
cdef Py_ssize_t _POSITIVE, _NEGATIVE, _MOST_GROUPS, _MOST_DIGITS
cdef unsigned char _JSONB_VERSION
cdef unsigned long long[19] _POWERS


cdef class Column:
    cdef readonly list refused
    cdef readonly Py_ssize_t nulls
    cdef readonly bytearray valid
    cdef readonly bytearray values
    cdef readonly bytearray offsets

    @cython.locals(target="unsigned char*")
    cdef void null(self, Py_ssize_t row) noexcept
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *
    cdef void refuse(self, Py_ssize_t row, Py_ssize_t start, Py_ssize_t end) except *


cdef class Skipped(Column):
    cdef void null(self, Py_ssize_t row) noexcept
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *
    cdef void refuse(self, Py_ssize_t row, Py_ssize_t start, Py_ssize_t end) except *


cdef class _Fixed(Column):
    pass


cdef class Int16(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Int32(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Int64(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Oid(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Boolean(Column):
    @cython.locals(target="unsigned char*")
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Date(_Fixed):
    @cython.locals(target="unsigned char*", days="long long")
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Timestamp(_Fixed):
    @cython.locals(target="unsigned char*", time="long long")
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Decimal128(_Fixed):
    cdef Py_ssize_t scale
    cdef unsigned long long limit

    @cython.locals(
        target="unsigned char*", groups=Py_ssize_t, weight=Py_ssize_t, sign=Py_ssize_t, power=Py_ssize_t,
        number="unsigned long long", rest="unsigned long long", negative=bint, at=Py_ssize_t,
    )
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class _Variable(Column):
    cdef void null(self, Py_ssize_t row) noexcept
    @cython.locals(target="unsigned char*")
    cdef void end(self, Py_ssize_t row) noexcept


cdef class Bytes(_Variable):
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Text(_Variable):
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Jsonb(_Variable):
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


cdef class Printed(_Variable):
    cdef Binary form

    @cython.locals(size=Py_ssize_t)
    cdef void put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except *


@cython.locals(octets="const unsigned char*", column=Column, row=Py_ssize_t, index=Py_ssize_t, length=Py_ssize_t)
cpdef void fill(list columns, bytes data, Py_ssize_t position, Py_ssize_t rows) except *

@cython.locals(values=bytearray, target="unsigned char*", index=Py_ssize_t)
cpdef bytearray consecutive(long long first, Py_ssize_t count)
