cimport cython

from aiorepl cimport octets
from aiorepl.values.forms cimport Binary, Form


cdef class Uuid(Binary):
    @cython.locals(at=Py_ssize_t)
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class UuidText(Form):
    pass


cdef object _uuid(object number)
