cdef class Transaction:
    cdef readonly object xid
    cdef readonly object commit_lsn
    cdef readonly object commit_timestamp
    cdef readonly object origin
    cdef readonly object gid
    cdef readonly object prepared


cdef class Slice:
    cdef readonly object transaction
    cdef readonly object changes
    cdef readonly object first
    cdef readonly object end_lsn
    cdef readonly object size
    cdef readonly object two_phase
