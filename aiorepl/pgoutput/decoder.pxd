cimport cython

from aiorepl cimport byteops
from aiorepl.pgoutput.rows cimport Delete, Insert, Update
from aiorepl.pgoutput.tuples cimport skip
from aiorepl.wire.frames cimport XLogData

cdef unsigned char _INSERT, _UPDATE, _DELETE, _NEW, _KEY, _OLD
cdef Py_ssize_t _RELATION_BYTES


cdef class Decoder:
    cdef public object streaming
    cdef public object views
    cdef public unsigned long long position
    cdef object _xid
    cdef dict _readers

    @cython.locals(kind="unsigned char")
    cpdef object decode(self, bytes payload)

    @cython.locals(at=Py_ssize_t, message=Insert)
    cdef Insert _insert(self, bytes payload)

    @cython.locals(
        at=Py_ssize_t, columns=Py_ssize_t, kind="unsigned char", old_at=Py_ssize_t, old_kind=str, message=Update,
    )
    cdef Update _update(self, bytes payload)

    @cython.locals(at=Py_ssize_t, kind="unsigned char", message=Delete)
    cdef Delete _delete(self, bytes payload)

    cdef Py_ssize_t _content(self, bytes payload, str message) except -1

    @cython.locals(oid=Py_ssize_t, data="const unsigned char*")
    cdef object _relation_at(self, bytes payload, Py_ssize_t at, str message)

    @cython.locals(data="const unsigned char*")
    cdef object _xid_of(self, bytes payload)


cdef unsigned char _byte(bytes payload, Py_ssize_t at, str message, str field) except? 255
cdef int _end(bytes payload, Py_ssize_t at, str message) except -1
