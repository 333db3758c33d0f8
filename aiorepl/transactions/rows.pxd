cimport cython

from aiorepl.values.forms cimport Form

cdef unsigned char _TEXT


cdef class Layout:
    cdef readonly object relation
    cdef readonly object types
    cdef readonly bint binary
    cdef readonly dict places
    cdef readonly tuple all
    cdef readonly dict derived
    cdef list _texts
    cdef list _binaries
    cdef object _version

    @cython.locals(place=Py_ssize_t, values=list, kind="unsigned char", form=Form)
    cpdef list read_all(self, list columns, bytes kinds, tuple places)


cdef class _Columns:
    cdef Layout _layout
    cdef list _columns
    cdef bytes _kinds
    cdef tuple _places

    cpdef list read_all(self)
