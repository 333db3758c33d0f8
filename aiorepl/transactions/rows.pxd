cimport cython

from aiorepl cimport byteops
from aiorepl.pgoutput.rows cimport RowMessage
from aiorepl.values.forms cimport Binary, Form

cdef unsigned char _TEXT, _BINARY


cdef class Layout:
    cdef readonly object relation
    cdef readonly object types
    cdef readonly bint binary
    cdef readonly dict indexes
    cdef readonly tuple all
    cdef readonly dict derived
    cdef list _texts
    cdef list _binaries
    cdef object _version
    cdef list _expanding
    cdef object _expanding_version

    @cython.locals(index=Py_ssize_t, values=list, kind="unsigned char", form=Form)
    cpdef list read_all(self, list columns, bytes kinds, tuple indexes)

    cpdef bint expands(self)
    cpdef Py_ssize_t expansion(self, RowMessage message) except -1

    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, total=Py_ssize_t, index=Py_ssize_t, kind="unsigned char",
        start=Py_ssize_t, form=Binary,
    )
    cdef Py_ssize_t _expanding_of(self, bytes payload, Py_ssize_t position) except -1


cdef class Layouts:
    cdef readonly object types
    cdef readonly bint binary
    cdef dict _known
    cdef object _version

    @cython.locals(layout=Layout)
    cpdef Layout of(self, object relation)


cdef class _Columns:
    cdef Layout _layout
    cdef list _columns
    cdef bytes _kinds
    cdef tuple _indexes

    cpdef list read_all(self)
