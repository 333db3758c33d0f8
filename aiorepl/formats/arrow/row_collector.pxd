cimport cython

from aiorepl cimport byteops
from aiorepl.formats.arrow.binary_columns cimport Column
from aiorepl.pgoutput.tuples cimport skip

cdef long long _READ, _INSERTED, _UPDATED, _DELETED, _TRUNCATED, _OPERATION, _KEY_ONLY, _WHOLE
cdef unsigned char _INSERT, _UPDATE, _DELETE, _BEGIN, _COMMIT, _NEW, _OLD, _KEY, _NULL, _TOAST, _TEXT, _BINARY
cdef long long _INT64_MOST, _TO_1970
cdef Py_ssize_t _MAIN, _BEFORE, _FLAGS, _ORDINAL, _LSN, _XID, _TIME, _RECORD


cdef class RowCollector:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t columns
    cdef readonly bytes key
    cdef readonly bint whole
    cdef readonly bytearray data
    cdef readonly bytearray records

    @cython.locals(
        data="const unsigned char*", kind="unsigned char", form="unsigned char", first=Py_ssize_t, second=Py_ssize_t,
        stop=Py_ssize_t, old=Py_ssize_t, new=Py_ssize_t, whole="long long", operation="long long", flags="long long",
    )
    cpdef void add(
        self, bytes block, Py_ssize_t start, Py_ssize_t end, long long ordinal, long long commit_lsn, long long xid,
        long long time,
    ) except *

    cpdef void truncate(self, long long ordinal, long long commit_lsn, long long xid, long long time) except *

    @cython.locals(
        count=Py_ssize_t, operations=bytearray, found=list, source="const unsigned char*", codes="unsigned char*",
        target="unsigned char*", row=Py_ssize_t, index=Py_ssize_t, field=Py_ssize_t,
    )
    cpdef list numbers(self)

    @cython.locals(
        found=bytearray, left=Py_ssize_t, data="const unsigned char*", source="const unsigned char*", row=Py_ssize_t,
        at=Py_ssize_t, index=Py_ssize_t, kind="unsigned char",
    )
    cpdef bytes kinds(self)

    @cython.locals(at=Py_ssize_t, target="unsigned char*")
    cdef void _append(
        self, long long main, long long before, long long flags, long long ordinal, long long commit_lsn, long long xid,
        long long time,
    ) except *

    @cython.locals(at=Py_ssize_t)
    cdef Py_ssize_t _copy(self, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1

    @cython.locals(
        key="const unsigned char*", index=Py_ssize_t, kind="unsigned char", other="unsigned char", size=Py_ssize_t,
        other_size=Py_ssize_t,
    )
    cdef bint _moves(self, const unsigned char* data, Py_ssize_t old, Py_ssize_t new) noexcept


cdef class BlockScanner:
    cdef readonly bytes block
    cdef readonly long long xid
    cdef readonly long long commit_lsn
    cdef readonly long long time
    cdef public long long ordinal
    cdef readonly Py_ssize_t start
    cdef readonly Py_ssize_t end
    cdef long long _after

    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, collector=RowCollector, start=Py_ssize_t, end=Py_ssize_t,
        kind="unsigned char", time="long long", oid=Py_ssize_t, last=Py_ssize_t,
    )
    cpdef int scan(self, dict collectors) except -1


@cython.locals(
    data="const unsigned char*", source="const unsigned char*", key="const unsigned char*", wanted="const unsigned char*",
    missing=Py_ssize_t, column=Column, row=Py_ssize_t, record=Py_ssize_t, at=Py_ssize_t, flags="long long",
    index=Py_ssize_t, old=Py_ssize_t, kind="unsigned char", value=Py_ssize_t, stop=Py_ssize_t,
)
cpdef void fill(list columns, bytes kinds, RowCollector rows, bytearray unchanged, bytearray ends) except *

@cython.locals(
    data="const unsigned char*", source="const unsigned char*", wanted="const unsigned char*", column=Column,
    row=Py_ssize_t, record=Py_ssize_t, at=Py_ssize_t, flags="long long", index=Py_ssize_t, kind="unsigned char",
    stop=Py_ssize_t,
)
cpdef void fill_before(list columns, bytes kinds, RowCollector rows, bytearray valid) except *

@cython.locals(kind="unsigned char")
cdef Py_ssize_t _value(const unsigned char* data, Py_ssize_t at, Py_ssize_t wanted) noexcept

cdef bint _equal(const unsigned char* data, Py_ssize_t one, Py_ssize_t other, Py_ssize_t size) noexcept

@cython.locals(at=Py_ssize_t, target="unsigned char*")
cdef void _put_int32(bytearray out, Py_ssize_t number) except *
