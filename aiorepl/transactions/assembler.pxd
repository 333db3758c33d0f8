cimport cython

from aiorepl.pgoutput.rows cimport RowMessage
from aiorepl.transactions.changes cimport RowChange, row_change
from aiorepl.transactions.rows cimport Layout, Layouts
from aiorepl.transactions.row_counts cimport TableCount, RowCounts

cdef Py_ssize_t _OVERHEAD


cdef class Assembler:
    cdef public object in_progress, chunks
    cdef public Py_ssize_t unknown_prepared
    cdef readonly object _state  # for tests of the table of transitions
    cdef object _resume, _part_xid, _begins, _begin, _transaction, _origin, _trace, _pending, _preparing, _altering, _truncated
    cdef public bint received
    cdef bint _deliver_prepared, _user_messages, _first, _skip
    cdef readonly Layouts layouts
    cdef RowCounts _counts
    cdef dict _handlers
    cdef list _relations, _slices, _changes
    cdef Py_ssize_t _size, _ordinal, _known, _slice_bytes

    @cython.locals(row=RowMessage, layout=Layout, expansion=Py_ssize_t, count=TableCount)
    cpdef list feed(self, object messages)
