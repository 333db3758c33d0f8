cimport cython

from aiorepl.pgoutput.rows cimport RowMessage


cdef class TableCount:
    cdef public object relation
    cdef public str table
    cdef readonly Py_ssize_t inserts, updates, deletes, insert_bytes, update_bytes, delete_bytes

    @cython.locals(payload=bytes, kind="unsigned char", size=Py_ssize_t)
    cpdef void add(self, RowMessage row)


cdef class RowCounts:
    cdef Py_ssize_t _most
    cdef dict _by_oid
    cdef TableCount _other
    cdef readonly object transactions, truncates, commits
    cdef public object altered

    @cython.locals(count=TableCount)
    cpdef TableCount of(self, object relation)
