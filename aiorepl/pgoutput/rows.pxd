cimport cython

from aiorepl.pgoutput.tuples cimport TupleData



cdef class RowMessage:
    cdef readonly object relation
    cdef readonly str old_kind
    cdef readonly Py_ssize_t old_at
    cdef readonly Py_ssize_t new_at
    cdef readonly bytes payload
    cdef readonly object xid

    cpdef void fill(
        self, object relation, str old_kind, Py_ssize_t old_at, Py_ssize_t new_at, bytes payload, object xid
    )


@cython.final
cdef class Insert(RowMessage):
    pass


@cython.final
cdef class Update(RowMessage):
    pass


@cython.final
cdef class Delete(RowMessage):
    pass
