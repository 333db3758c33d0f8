cdef class Transaction:
    cdef readonly object xid
    cdef readonly object commit_lsn
    cdef readonly object commit_timestamp
    cdef readonly object origin
    cdef readonly object gid
    cdef readonly object prepared
    cdef readonly object snapshot
    cdef readonly object trace
