cimport cython

from aiorepl.formats.arrow.binary_columns cimport Column
from aiorepl.snapshot.copy_rows cimport RowScanner

cdef Py_ssize_t _BLOCK_FIELDS, _FIELD


cdef class ColumnFiller(RowScanner):
    cdef object _make
    cdef Py_ssize_t _block

    @cython.locals(columns=list, octets="const unsigned char*", end=Py_ssize_t, column=Column)
    cpdef tuple take(self, bytearray data)
    @cython.locals(
        fields="const unsigned char*", rows=Py_ssize_t, column=Column, wanted=Py_ssize_t, count=Py_ssize_t, index=Py_ssize_t,
    )
    cdef Py_ssize_t fill(
        self, list columns, const unsigned char* octets, Py_ssize_t position, Py_ssize_t size, Py_ssize_t limit,
        Py_ssize_t room,
    ) except -1


@cython.locals(filler=ColumnFiller, octets="const unsigned char*")
cpdef void fill(list columns, bytes data, Py_ssize_t position, Py_ssize_t rows) except *
