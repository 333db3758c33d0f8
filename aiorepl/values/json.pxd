cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport forms
from aiorepl.values.forms cimport Binary, Form

cdef unsigned char _LF, _CR

cpdef object read_json(bytes raw)

cpdef bytes one_line(bytes raw)


cdef class Document(Binary):
    cdef Py_ssize_t _start

    @cython.locals(data="const unsigned char*")
    cdef bytes body(self, bytes raw)


cdef class DocumentText(Form):
    pass
