cdef class Slice:
    cdef readonly object transaction
    cdef readonly object changes
    cdef readonly object first
    cdef readonly object end_lsn
    cdef readonly object size
    cdef readonly object two_phase
    cdef readonly object kept
