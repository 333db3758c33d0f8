cimport cython

from aiorepl cimport octets


cdef class Form:
    cpdef object read(self, bytes raw)


cdef class Called(Form):
    cdef object _function

    cpdef object read(self, bytes raw)


cdef class Binary(Form):
    cpdef void put(self, bytearray out, bytes raw) except *
    cpdef void put_string(self, bytearray out, bytes raw) except *
    cpdef void put_json(self, bytearray out, bytes raw) except *
    @cython.locals(out=bytearray)
    cpdef str text(self, bytes raw)
    @cython.locals(out=bytearray)
    cpdef bytes json(self, bytes raw)


cdef class Text(Binary):
    cpdef object read(self, bytes raw)
    cpdef void put(self, bytearray out, bytes raw) except *
    cpdef void put_string(self, bytearray out, bytes raw) except *
    cpdef str text(self, bytes raw)


cpdef void put_string(bytearray out, bytes raw) except *
