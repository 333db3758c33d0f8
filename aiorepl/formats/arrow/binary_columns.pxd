cimport cython

from aiorepl cimport byteops
from aiorepl.values.forms cimport Binary

cdef Py_ssize_t _NULL, _BLOCK
cdef long long _INT32_LEAST, _INT32_MOST, _INT64_LEAST, _INT64_MOST
cdef long long _DAYS_TO_2000, _MICROSECONDS_TO_2000, _MICROSECONDS_OF_DAY
cdef Py_ssize_t _POSITIVE, _NEGATIVE, _MOST_GROUPS, _MOST_DIGITS
cdef unsigned char _JSONB_VERSION
cdef unsigned long long[19] _POWERS


cdef class Column:
    cdef public bint failed
    cdef readonly Py_ssize_t nulls
    cdef readonly bytearray valid
    cdef readonly bytearray values
    cdef readonly bytearray offsets

    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *

    @cython.locals(target="unsigned char*")
    cdef void null(self, Py_ssize_t row) noexcept


cdef class _Fixed(Column):
    pass


cdef class Int16(_Fixed):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t)
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Int32(_Fixed):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t)
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Int64(_Fixed):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t)
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Oid(_Fixed):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t)
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Boolean(Column):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t)
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Date(_Fixed):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t, days="long long")
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Timestamp(_Fixed):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t, time="long long")
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Time(_Fixed):
    @cython.locals(target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t, time="long long")
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Decimal128(_Fixed):
    cdef Py_ssize_t scale

    @cython.locals(
        target="unsigned char*", index=Py_ssize_t, at=Py_ssize_t, length=Py_ssize_t, groups=Py_ssize_t, weight=Py_ssize_t,
        sign=Py_ssize_t, power=Py_ssize_t, number="unsigned long long", rest="unsigned long long", group=Py_ssize_t,
        scale=Py_ssize_t, negative=bint,
    )
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class _Variable(Column):
    cdef Py_ssize_t used, rows

    @cython.locals(
        target="unsigned char*", ends="unsigned char*", index=Py_ssize_t, at=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t,
        wanted=Py_ssize_t,
    )
    cdef void copy(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first,
        Py_ssize_t skip,
    ) except *


cdef class Bytes(_Variable):
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Text(_Variable):
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *

    @cython.locals(target="const unsigned char*", begin=Py_ssize_t, index=Py_ssize_t, at=Py_ssize_t)
    cdef void copy_text(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first,
        Py_ssize_t skip,
    ) except *


cdef class Jsonb(Text):
    @cython.locals(index=Py_ssize_t, at=Py_ssize_t)
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


cdef class Printed(_Variable):
    cdef Binary form

    @cython.locals(ends="unsigned char*", index=Py_ssize_t, at=Py_ssize_t)
    cdef void put(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* places, Py_ssize_t first
    ) except *


@cython.locals(
    octets="const unsigned char*", column=Column, places=bytearray, found="unsigned char*", row=Py_ssize_t, count=Py_ssize_t,
    index=Py_ssize_t,
)
cpdef void fill(list columns, bytes data, Py_ssize_t position, Py_ssize_t rows) except *

@cython.locals(row=Py_ssize_t, index=Py_ssize_t, length=Py_ssize_t)
cdef Py_ssize_t find_places(
    unsigned char* places, const unsigned char* octets, Py_ssize_t position, Py_ssize_t rows, Py_ssize_t columns
) noexcept

@cython.locals(values=bytearray, target="unsigned char*", index=Py_ssize_t)
cpdef bytearray consecutive(long long first, Py_ssize_t count)

@cython.locals(
    found=list, octets="const unsigned char*", columns=Py_ssize_t, index=Py_ssize_t, length=Py_ssize_t,
)
cpdef list values_of(bytes data, Py_ssize_t position, Py_ssize_t rows, Py_ssize_t wanted)
