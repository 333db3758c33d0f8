cimport cython

from aiorepl cimport byteops
from aiorepl.transactions.changes cimport Change, RowChange


cdef class SegmentBuilder:
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t _block_bytes, _ordinal
    cdef object _open, _descriptions
    cdef dict _chunks
    cdef list _ready, _blocks, _earlier_types, _whole_chunks
    cdef bint _binary, _begins_snapshot, _any
    cdef _OpenBlock _block

    @cython.locals(block=_OpenBlock, row=RowChange, payload=bytes)
    cdef void _change(self, Change change) except *

    @cython.locals(block=_OpenBlock)
    cdef void _close_block(self) except *


cdef class _OpenBlock:
    cdef readonly bytearray data
    cdef readonly dict current, rows
    cdef readonly list needed
    cdef public object relation, number, continuation, first_commit_lsn, last_commit_lsn, last_end_lsn
    cdef public Py_ssize_t run

    cpdef void append(self, bytes payload) except *
    cpdef void append_without_xid(self, bytes payload) except *
