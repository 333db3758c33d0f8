cimport cython

from aiorepl cimport octets


@cython.locals(text=bytes)
cpdef void put_float8(bytearray out, double value) except *

@cython.locals(
    size=double, low=double, high=double, power=double, digits=double, places="int",
)
cpdef void put_float4(bytearray out, double value) except *
