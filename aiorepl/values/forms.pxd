cimport cython

from aiorepl cimport byteops


cdef class Form:
    cpdef object read(self, bytes raw)
    @cython.locals(data="const unsigned char*")
    cpdef object read_in(self, bytes raw, Py_ssize_t start, Py_ssize_t end)


cdef class FunctionForm(Form):
    cdef object _function

    cpdef object read(self, bytes raw)


cdef class Binary(Form):
    cpdef bint expands(self)
    cpdef Py_ssize_t expansion(self, bytes raw, Py_ssize_t start, Py_ssize_t end) except -1
    cpdef void put(self, bytearray out, bytes raw) except *
    cpdef void put_string(self, bytearray out, bytes raw) except *
    cpdef void put_json(self, bytearray out, bytes raw) except *
    @cython.locals(data="const unsigned char*")
    cpdef void put_json_in(self, bytearray out, bytes raw, Py_ssize_t start, Py_ssize_t end) except *
    @cython.locals(out=bytearray)
    cpdef str text(self, bytes raw)
    @cython.locals(out=bytearray)
    cpdef bytes json(self, bytes raw)


cdef class AsSent(Binary):
    cpdef void put(self, bytearray out, bytes raw) except *
    cpdef void put_string(self, bytearray out, bytes raw) except *
    cpdef str text(self, bytes raw)


cdef class Text(AsSent):
    cpdef object read(self, bytes raw)
    @cython.locals(data="const unsigned char*")
    cpdef void put_json_in(self, bytearray out, bytes raw, Py_ssize_t start, Py_ssize_t end) except *


cdef class Container(Binary):
    @cython.locals(start=Py_ssize_t, data="const unsigned char*")
    cpdef void put_string(self, bytearray out, bytes raw) except *


cdef class FunctionBinary(Binary):
    cdef object _read, _print, _encode


cpdef void put_string(bytearray out, bytes raw) except *
