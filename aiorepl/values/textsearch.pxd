cimport cython

from aiorepl cimport byteops
from aiorepl.values.forms cimport Container

cdef unsigned int _POSITION
cdef unsigned char _APOSTROPHE, _BACKSLASH
cdef tuple _POSITION_WEIGHTS


cdef class TsVector(Container):
    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, count=Py_ssize_t, position=Py_ssize_t, lexeme=Py_ssize_t,
        end=Py_ssize_t, positions=Py_ssize_t, index=Py_ssize_t, value="unsigned int",
    )
    cpdef void put(self, bytearray out, bytes raw) except *


cdef void put_lexeme(bytearray out, bytes lexeme) except *
