cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport objects
from aiorepl.values.forms cimport Binary, Form
from aiorepl.values.numbers cimport Integer

cdef char _LARGE_A


cdef class Uuid(Binary):
    @cython.locals(data="const unsigned char*")
    cpdef object read(self, bytes raw)

    @cython.locals(at=Py_ssize_t)
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class UuidText(Form):
    pass


cdef object _uuid(object number)


cdef class Xid(Integer):
    @cython.locals(data="const unsigned char*")
    cpdef void put_json_in(self, bytearray out, bytes raw, Py_ssize_t start, Py_ssize_t end) except *


cdef class RegType(Xid):
    cdef bytes _zero

    @cython.locals(number="long long")
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class Uint64(Binary):
    pass


cdef class Lsn(Binary):
    @cython.locals(number="unsigned long long")
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class LsnText(Form):
    pass


cdef class Tid(Binary):
    @cython.locals(data="const unsigned char*")
    cpdef void put(self, bytearray out, bytes raw) except *


@cython.locals(data="const unsigned char*")
cdef unsigned long long _uint64(bytes raw) except? 1
