cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport delimiters
from aiorepl.values.forms cimport Binary, Container, Form

cdef unsigned char _OPEN, _CLOSE, _COMMA, _QUOTE
cdef Py_ssize_t _COUNT, _HEAD
cdef bytes _QUOTED, _ENDS, _NEEDS_QUOTES


@cython.locals(data="const unsigned char*")
cpdef Py_ssize_t field_end(bytes raw, Py_ssize_t start, Py_ssize_t end, bytes ends) except -1

@cython.locals(data="const unsigned char*")
cpdef object read_field(Form form, bytes raw, Py_ssize_t start, Py_ssize_t end)

@cython.locals(start=Py_ssize_t, size=Py_ssize_t, data="const unsigned char*", text=bytes)
cpdef void put_field(bytearray out, Binary form, bytes raw, bytes needs_quotes) except *


cdef class CompositeText(Form):
    cdef list _names, _forms

    @cython.locals(
        end=Py_ssize_t, ends=list, count=Py_ssize_t, start=Py_ssize_t, index=Py_ssize_t, after=Py_ssize_t, values=dict
    )
    cpdef object read(self, bytes raw)


@cython.locals(at=Py_ssize_t, ends=list)
cdef list _fields(bytes raw, Py_ssize_t end)

cdef int _expect(Py_ssize_t count, Py_ssize_t known) except -1


cdef class Composite(Container):
    cdef list _names, _oids, _forms

    @cython.locals(
        data="const unsigned char*", at=Py_ssize_t, index=Py_ssize_t, length=Py_ssize_t, form=Binary, values=dict
    )
    cpdef object read(self, bytes raw)

    @cython.locals(data="const unsigned char*", at=Py_ssize_t, index=Py_ssize_t, length=Py_ssize_t)
    cpdef void put(self, bytearray out, bytes raw) except *

    @cython.locals(index=Py_ssize_t, form=Binary)
    cpdef bint expands(self)

    @cython.locals(
        data="const unsigned char*", total=Py_ssize_t, at=Py_ssize_t, index=Py_ssize_t, length=Py_ssize_t, form=Binary,
    )
    cpdef Py_ssize_t expansion(self, bytes raw, Py_ssize_t start, Py_ssize_t end) except -1

    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, count=Py_ssize_t, at=Py_ssize_t, same=bint, index=Py_ssize_t,
        length=Py_ssize_t, known=Py_ssize_t,
    )
    cdef int _check(self, bytes raw) except -1
