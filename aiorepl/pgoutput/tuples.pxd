cimport cython

from aiorepl cimport byteops

cdef unsigned char _NULL, _TOAST, _TEXT, _BINARY


@cython.locals(
    size=Py_ssize_t, start=Py_ssize_t, count=Py_ssize_t, column=Py_ssize_t, data="const unsigned char*",
    kind="unsigned char",
)
cpdef Py_ssize_t skip(bytes payload, Py_ssize_t position, str message, object columns) except -1

@cython.locals(
    size=Py_ssize_t, start=Py_ssize_t, count=Py_ssize_t, data="const unsigned char*", kind="unsigned char", columns=list,
)
cpdef list columns_of(bytes payload, Py_ssize_t position, Py_ssize_t most=*)

@cython.locals(
    size=Py_ssize_t, count=Py_ssize_t, column=Py_ssize_t, data="const unsigned char*", kind="unsigned char", found=bytes,
    kinds="unsigned char*",
)
cpdef bytes kinds_of(bytes payload, Py_ssize_t position)

@cython.locals(
    size=Py_ssize_t, start=Py_ssize_t, count=Py_ssize_t, data="const unsigned char*", kind="unsigned char", columns=list,
)
cpdef list encoded_columns(bytes payload, Py_ssize_t position)

cpdef bint any_unchanged(list columns)


@cython.final
cdef class LargeColumn:
    cdef readonly bytes payload
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end


@cython.final
cdef class TupleData:
    cdef bytes _payload
    cdef Py_ssize_t _at
