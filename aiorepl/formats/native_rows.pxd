cimport cython

from aiorepl cimport byteops
from aiorepl.pgoutput.tuples cimport LargeColumn
from aiorepl.transactions.changes cimport Change, RowChange, is_large, uncut
from aiorepl.transactions.rows cimport Layout
from aiorepl.values.forms cimport Binary, Text
from aiorepl.values.styles cimport put_styled

cdef unsigned char _TEXT, _STRING, _QUOTE


cdef class NativeRows:
    cdef bint _typed
    cdef dict _tables
    cdef object _transaction
    cdef readonly bytes header
    cdef readonly bytes stamp

    @cython.locals(out=bytearray)
    cpdef int lines(self, object pieces, object changes, object other) except -1

    @cython.locals(table=_Table, new=list, old=list, new_kinds=bytes, old_kinds=bytes, whole=bint, omitted=bint)
    cpdef int row(self, bytearray out, RowChange change, object pieces) except -1

    @cython.locals(table=_Table, out=bytearray)
    cpdef object key(self, RowChange change)

    @cython.locals(table=_Table)
    cdef _Table _table(self, Layout layout)


cdef class _Table:
    cdef Layout layout
    cdef bint _typed
    cdef dict heads, _encoders
    cdef list _first, _further
    cdef bytes _styles
    cdef list _texts, _binaries
    cdef tuple all, key

    @cython.locals(
        labels=list, omitted=bint, index=Py_ssize_t, raw=bytes, kind="unsigned char",
    )
    cdef bint write(self, bytearray out, list columns, bytes kinds, tuple indexes, object pieces) except -1

    @cython.locals(
        out=bytearray, style="unsigned char", form=Binary, quoted=bint, raw=bytes, data="const unsigned char*",
    )
    cdef void _put_large(self, object pieces, Py_ssize_t index, int kind, LargeColumn column) except *

    @cython.locals(form=Binary, size=Py_ssize_t)
    cdef void _put(self, bytearray out, Py_ssize_t index, int kind, bytes raw) except *

    cdef bytes _encoded(self, Py_ssize_t index, int kind, bytes raw)
