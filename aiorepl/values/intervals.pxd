cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport calendar, objects
from aiorepl.values.forms cimport Binary, Form

cdef long long _LOWEST, _HIGHEST, _LOWEST_PART, _HIGHEST_PART
cdef unsigned long long _HUNDRED_HOURS, _MOST_HOURS, _MOST
cdef int _YEARS, _MONTHS, _DAYS, _CLOCK
cdef unsigned char _ZERO, _NINE, _PLUS, _MINUS, _COLON, _POINT, _SPACE
cdef tuple _UNITS

@cython.locals(
    years="long long", begun=bint, negative=bint, index="int", value="long long", size="unsigned long long",
    hundreds="unsigned long long",
)
cpdef void put_interval(bytearray out, long long months, long long days, long long microseconds) except *

cdef object _interval(object months, object days, object microseconds)


cdef class IntervalBinary(Binary):
    @cython.locals(data="const unsigned char*", infinity=bytes)
    cpdef object read(self, bytes raw)

    @cython.locals(data="const unsigned char*", infinity=bytes)
    cpdef void put(self, bytearray out, bytes raw) except *


@cython.locals(data="const unsigned char*", microseconds="long long", days="long long", months="long long")
cdef bytes _infinity(bytes raw)


cdef class IntervalText(Form):
    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, at=Py_ssize_t, start=Py_ssize_t, last="int", months="long long",
        days="long long", clock="unsigned long long", negative=bint, number="long long", value="long long", microseconds="long long",
    )
    cpdef object read(self, bytes raw)


@cython.locals(
    minutes="unsigned int", seconds="unsigned int", fraction="unsigned int", places="int", index=Py_ssize_t,
)
cdef unsigned long long _clock(
    const unsigned char* data, unsigned long long hours, Py_ssize_t at, Py_ssize_t size
) except? 1

cdef int _two(const unsigned char* data, Py_ssize_t at, Py_ssize_t size) except -1
