cimport cython

from aiorepl cimport byteops

cdef double _TWO_53, _NO_MIDPOINT_ABOVE, _FLOAT4_NORMAL, _FLOAT4_LARGE


@cython.locals(text=bytes)
cpdef void put_float8(bytearray out, double value) except *

@cython.locals(
    size=double, low=double, high=double, power=double, digits=double, places="int",
)
cpdef void put_float4(bytearray out, double value) except *

@cython.locals(size=double, nearest=double, precision="int", text=bytes)
cdef bytes _float4_with_exponent(double value, double low, double high)

@cython.locals(power="long long", sign=bytes, whole=bytes, fraction=bytes, digits=bytes, mantissa=bytes, exponent=bytes)
cdef bytes _laid_out(bytes decimal, Py_ssize_t fixed_below)
