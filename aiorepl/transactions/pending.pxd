cimport cython

from aiorepl cimport byteops
from aiorepl.pgoutput.rows cimport RowMessage
from aiorepl.transactions.changes cimport row_change
from aiorepl.transactions.rows cimport Layout

cdef Py_ssize_t _OVERHEAD, _SUBTRANSACTION


cdef class Pending:
    cdef public object xid, origin, trace
    cdef public Py_ssize_t memory, fixed
    cdef public bint messages, doubtful
    cdef list _messages, _chunks
    cdef Py_ssize_t _spooled, _slice_bytes
    cdef dict _first_ordinals

    @cython.locals(payload=bytes, cost=Py_ssize_t)
    cpdef Py_ssize_t add(self, object message) except -1

    @cython.locals(
        data=bytearray, size=Py_ssize_t, ordinal=Py_ssize_t, stop=Py_ssize_t, payload=bytes, description=bytes,
    )
    cpdef object _write(self, object spool, Py_ssize_t first)

    @cython.locals(part=list, size=Py_ssize_t, stop=Py_ssize_t, layout=Layout)
    cpdef tuple _slice(self, Py_ssize_t ordinal, object transaction, object layout_of)
