cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport forms
from aiorepl.values.forms cimport Binary, Form


cdef class CharText(Form):
    pass


cdef class Char(Binary):
    pass


cdef class ByteaText(Form):
    pass


cdef class Bytea(Binary):
    pass


cdef class BitsText(Form):
    pass


cdef class Bits(Binary):
    @cython.locals(data="const unsigned char*", size=Py_ssize_t, count=Py_ssize_t)
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class Versioned(Binary):
    @cython.locals(data="const unsigned char*")
    cdef bytes body(self, bytes raw)
