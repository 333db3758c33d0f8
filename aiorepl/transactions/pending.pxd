cimport cython

from aiorepl cimport byteops
from aiorepl.pgoutput.decoder cimport Decoder
from aiorepl.pgoutput.rows cimport RowMessage
from aiorepl.transactions.changes cimport row_change
from aiorepl.transactions.rows cimport Layout

cdef Py_ssize_t _OVERHEAD, _SUBTRANSACTION


cdef class Pending:
    cdef public object xid, origin
    cdef public Py_ssize_t memory, fixed
    cdef list _messages, _chunks
    cdef Py_ssize_t _spooled, _slice_bytes
    cdef dict _firsts

    @cython.locals(payload=bytes, cost=Py_ssize_t)
    cpdef Py_ssize_t add(self, object message) except -1

    @cython.locals(
        data=bytearray, size=Py_ssize_t, place=Py_ssize_t, behind=Py_ssize_t, payload=bytes, described=bytes,
    )
    cpdef object _write(self, object spool, Py_ssize_t first)

    @cython.locals(part=list, size=Py_ssize_t, behind=Py_ssize_t, layout=Layout)
    cpdef tuple _portion(self, Py_ssize_t ordinal, object transaction, object layout_of)


@cython.locals(
    changes=list, layouts=dict, layout=Layout, octets_="const unsigned char*", at=Py_ssize_t, size=Py_ssize_t,
    start=Py_ssize_t, row=RowMessage,
)
cpdef list _read(
    bytes data, Decoder decoder, object transaction, object layout_of, Py_ssize_t ordinal, Py_ssize_t first,
    Py_ssize_t behind,
)
