from aiorepl.pgoutput.rows cimport Insert as InsertMessage
from aiorepl.pgoutput.rows cimport RowMessage
from aiorepl.pgoutput.rows cimport Update as UpdateMessage
from aiorepl.pgoutput.tuples cimport any_unchanged, columns_of, kinds_of
from aiorepl.transactions.rows cimport Layout


cdef Py_ssize_t _MOST_KEPT, _LARGE_COLUMN


cdef class Change:
    cdef readonly object transaction
    cdef readonly Py_ssize_t ordinal


cdef class RowChange(Change):
    cdef readonly Layout layout
    cdef readonly RowMessage message
    cdef list _new
    cdef list _old

    cdef list _keep_new(self, list columns)
    cdef list _keep_old(self, list columns)
    cpdef void fill(self, object transaction, Py_ssize_t ordinal, Layout layout, RowMessage message)


cdef class Insert(RowChange):
    pass


cdef class Read(Insert):
    pass


cdef class Update(RowChange):
    pass


cdef class Delete(RowChange):
    pass


cdef class Truncate(Change):
    cdef readonly object message


cdef class Message(Change):
    cdef readonly object message


cpdef RowChange row_change(object transaction, Py_ssize_t ordinal, Layout layout, RowMessage message)


cpdef bint is_large(RowChange change)
cpdef tuple uncut(RowChange change)
