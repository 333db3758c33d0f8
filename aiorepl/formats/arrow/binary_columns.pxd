cimport cython

from aiorepl cimport byteops
from aiorepl.values.forms cimport Binary

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
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(number=Py_ssize_t, start=Py_ssize_t, end=Py_ssize_t)
    cdef void put_all(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* fields, Py_ssize_t at,
        Py_ssize_t step,
    ) except *
    cdef void refuse(self, Py_ssize_t row, Py_ssize_t start, Py_ssize_t end) except *
    cpdef void reserve(self, Py_ssize_t rows) except *


cdef class Skipped(Column):
    cdef void null(self, Py_ssize_t row) noexcept
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    cdef void refuse(self, Py_ssize_t row, Py_ssize_t start, Py_ssize_t end) except *


cdef class _Fixed(Column):
    cpdef void reserve(self, Py_ssize_t rows) except *


cdef class Int16(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Int32(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Int64(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Oid(_Fixed):
    @cython.locals(target="unsigned char*")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Boolean(Column):
    cpdef void reserve(self, Py_ssize_t rows) except *
    @cython.locals(target="unsigned char*")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Date(_Fixed):
    @cython.locals(target="unsigned char*", days="long long")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Timestamp(_Fixed):
    @cython.locals(target="unsigned char*", time="long long")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Decimal128(_Fixed):
    cdef Py_ssize_t scale
    cdef unsigned long long limit

    @cython.locals(
        target="unsigned char*", groups=Py_ssize_t, weight=Py_ssize_t, sign=Py_ssize_t, power=Py_ssize_t,
        number="unsigned long long", rest="unsigned long long", negative=bint, at=Py_ssize_t,
    )
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class _Variable(Column):
    cpdef void reserve(self, Py_ssize_t rows) except *
    cdef void null(self, Py_ssize_t row) noexcept
    @cython.locals(target="unsigned char*")
    cdef void end(self, Py_ssize_t row) noexcept


cdef class _Copied(_Variable):
    cdef Py_ssize_t used

    @cython.locals(target="unsigned char*")
    cdef void end(self, Py_ssize_t row) noexcept
    @cython.locals(target="unsigned char*", used=Py_ssize_t)
    cdef bint copy(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Bytes(_Copied):
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Text(_Copied):
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1
    @cython.locals(
        first=Py_ssize_t, used=Py_ssize_t, nulls=Py_ssize_t, place=Py_ssize_t, number=Py_ssize_t, start=Py_ssize_t,
        end=Py_ssize_t, target="unsigned char*", ends="unsigned char*",
    )
    cdef void put_all(
        self, Py_ssize_t row, Py_ssize_t count, const unsigned char* data, const unsigned char* fields, Py_ssize_t at,
        Py_ssize_t step,
    ) except *


cdef class Jsonb(_Copied):
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Printed(_Variable):
    cdef Binary form

    @cython.locals(size=Py_ssize_t, target="unsigned char*")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


@cython.locals(values=bytearray, target="unsigned char*", index=Py_ssize_t)
cpdef bytearray consecutive(long long first, Py_ssize_t count)
