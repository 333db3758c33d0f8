cimport cython

from aiorepl.pgoutput.rows cimport Insert as InsertMessage
from aiorepl.pgoutput.rows cimport RowMessage
from aiorepl.pgoutput.rows cimport Update as UpdateMessage
from aiorepl.pgoutput.tuples cimport any_unchanged, columns_of, kinds_of
from aiorepl.values.forms cimport Form

cdef unsigned char _TEXT


cdef class Layout:
    cdef readonly object relation
    cdef readonly object types
    cdef readonly bint binary
    cdef readonly dict places
    cdef readonly tuple all
    cdef readonly dict derived
    cdef list _texts
    cdef list _binaries
    cdef object _version

    @cython.locals(place=Py_ssize_t, values=list, kind="unsigned char", form=Form)
    cpdef list read_all(self, list columns, bytes kinds, tuple places)


cdef class _Columns:
    cdef Layout _layout
    cdef list _columns
    cdef bytes _kinds
    cdef tuple _places

    cpdef list read_all(self)


cdef class Change:
    cdef readonly object transaction
    cdef readonly Py_ssize_t ordinal


cdef class RowChange(Change):
    cdef readonly Layout layout
    cdef readonly RowMessage message
    cdef list _new
    cdef list _old

    cpdef void fill(self, object transaction, Py_ssize_t ordinal, Layout layout, RowMessage message)


cdef class Insert(RowChange):
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
