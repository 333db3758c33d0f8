cimport cython

from aiorepl cimport byteops
from aiorepl.formats.arrow.binary_columns cimport Column, _Fixed, _Variable

cdef unsigned char _ZERO, _MINUS, _PLUS, _POINT, _COLON, _HYPHEN, _SPACE, _TRUE, _FALSE, _BACKSLASH, _X
cdef Py_ssize_t _MOST_DIGITS
cdef long long _INT64_HEAD, _SECOND, _DAY, _NOTHING
cdef list _POWERS


cdef class Integer(_Fixed):
    cdef Py_ssize_t size
    cdef long long limit

    @cython.locals(
        target="unsigned char*", negative=bint, first=Py_ssize_t, digits=Py_ssize_t, number="long long", last="long long",
    )
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Boolean(Column):
    cpdef void reserve(self, Py_ssize_t rows) except *
    @cython.locals(target="unsigned char*")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Date(_Fixed):
    @cython.locals(target="unsigned char*", days="long long")
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Timestamp(_Fixed):
    @cython.locals(
        target="unsigned char*", days="long long", clock=Py_ssize_t, stop=Py_ssize_t, time="long long", east="long long",
    )
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Decimal128(_Fixed):
    cdef Py_ssize_t scale
    cdef long long limit

    @cython.locals(
        target="unsigned char*", negative=bint, at=Py_ssize_t, point=Py_ssize_t, places=Py_ssize_t, missing=Py_ssize_t,
        number="long long", fraction="long long", power="long long",
    )
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


cdef class Hex(_Variable):
    @cython.locals(size=Py_ssize_t)
    cdef bint put(self, Py_ssize_t row, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1


@cython.locals(number="long long", at=Py_ssize_t, digit="int")
cdef long long _number(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept

@cython.locals(
    year="long long", month="long long", day="long long", era="long long", of_era="long long", of_year="long long",
)
cdef long long _days(const unsigned char* data, Py_ssize_t start) noexcept

@cython.locals(
    hour="long long", minute="long long", second="long long", fraction="long long", places=Py_ssize_t, power="long long",
)
cdef long long _clock(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept

@cython.locals(seconds="long long", weight="long long", part="long long", at=Py_ssize_t)
cdef long long _offset(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept
