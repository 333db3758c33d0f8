cimport cython

from aiorepl cimport byteops
from aiorepl.pgoutput.rows cimport Insert
from aiorepl.transactions.changes cimport row_change
from aiorepl.transactions.rows cimport Layout

cdef unsigned char _NULL, _NEW, _INSERT
cdef Py_ssize_t _MINUS_ONE_16, _MINUS_ONE_32, _LARGEST, _NEW_AT, _COLUMNS_AT, _FIELD


cdef class RowScanner:
    cdef readonly Py_ssize_t missing, count
    cdef readonly bint ended
    cdef Py_ssize_t columns
    cdef bytearray fields
    cdef bint _begun

    @cython.locals(begins=Py_ssize_t)
    cdef bint begin(self, bytearray data) except -1
    cdef void drop(self, bytearray data, Py_ssize_t end) except *
    @cython.locals(
        at=Py_ssize_t, columns=Py_ssize_t, wanted=bint, fields="unsigned char*", record=Py_ssize_t, count=Py_ssize_t,
        needed=Py_ssize_t, found=Py_ssize_t, column=Py_ssize_t, length=Py_ssize_t, end=Py_ssize_t,
    )
    cdef Py_ssize_t scan(
        self, const unsigned char* octets, Py_ssize_t row, Py_ssize_t size, Py_ssize_t limit
    ) except -1


cdef class RowSplitter(RowScanner):
    @cython.locals(octets="const unsigned char*", end=Py_ssize_t)
    cpdef tuple take(self, bytearray data)


cdef class FieldSplitter(RowScanner):
    @cython.locals(octets="const unsigned char*", end=Py_ssize_t)
    cpdef tuple take(self, bytearray data)


@cython.locals(octets="const unsigned char*", columns=Py_ssize_t, length=Py_ssize_t)
cpdef Py_ssize_t skip_rows(bytes data, Py_ssize_t position, Py_ssize_t count) except -1

@cython.locals(
    changes=list, octets="const unsigned char*", number=Py_ssize_t, size=Py_ssize_t, payload=bytes, message=Insert,
    oid="unsigned int",
)
cpdef list read_rows(
    bytes data, Py_ssize_t position, Py_ssize_t count, Py_ssize_t ordinal, object transaction, Layout layout, bytes kinds,
)

@cython.locals(octets="const unsigned char*", size=Py_ssize_t, payload=bytes)
cpdef tuple put_inserts(
    bytearray out, bytes data, Py_ssize_t position, Py_ssize_t row, Py_ssize_t count, Py_ssize_t limit, unsigned int oid,
    bytes kinds,
)

@cython.locals(columns=Py_ssize_t, size=Py_ssize_t, length=Py_ssize_t)
cdef Py_ssize_t insert_bytes(const unsigned char* octets, Py_ssize_t position) noexcept

@cython.locals(
    target="unsigned char*", letters="const unsigned char*", columns=Py_ssize_t, column=Py_ssize_t, at=Py_ssize_t,
    length=Py_ssize_t,
)
cdef Py_ssize_t fill_insert(bytes payload, const unsigned char* octets, Py_ssize_t position, unsigned int oid, bytes kinds)
