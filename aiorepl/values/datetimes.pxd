cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport calendar
from aiorepl.values.forms cimport Binary, Form

cdef long long _DAY, _FIRST_DAY, _END_OF_DAYS, _FIRST_MOMENT, _END_OF_MOMENTS, _MAX_OFFSET


cdef class Timestamp(Binary):
    cdef object _zone
    cdef bytes _suffix

    @cython.locals(microseconds="long long", before_christ=bint)
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class TimestampText(Form):
    cdef object _zone
    cdef object _parse


cdef class Date(Binary):
    @cython.locals(days="long long")
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class DateText(Form):
    pass


cdef class Time(Binary):
    @cython.locals(microseconds="long long")
    cpdef object read(self, bytes raw)


cdef class TimeText(Form):
    pass


cdef class TimeTz(Binary):
    @cython.locals(data="const unsigned char*", microseconds="long long")
    cpdef object read(self, bytes raw)

    @cython.locals(data="const unsigned char*", west="int", seconds="unsigned int")
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class TimeTzText(Form):
    pass


@cython.locals(data="const unsigned char*")
cdef long long _int64(bytes raw) except? -1

@cython.locals(data="const unsigned char*")
cdef long long _int32(bytes raw) except? -1

@cython.locals(microseconds="long long")
cdef long long _clock(bytes raw) except? -1

@cython.locals(data="const unsigned char*", microseconds="long long", west="long long")
cdef long long _timetz_microseconds(bytes raw) except? -1

cdef bytes _infinity(long long value, long long negative, long long positive)
