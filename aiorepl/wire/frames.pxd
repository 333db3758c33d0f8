cimport cython

from aiorepl cimport byteops

cdef unsigned char _COPY_DATA, _XLOG


@cython.final
cdef class XLogData:
    cdef readonly unsigned long long start
    cdef readonly unsigned long long end
    cdef readonly long long sent_at
    cdef readonly bytes payload


cdef class FrameBuffer:
    cdef Py_ssize_t _least, _start, _end, _surplus
    cdef bytearray _memory
    cdef bint _large
    cdef readonly Py_ssize_t received
    cdef public object damage

    @cython.locals(
        others=list, run=list, received=Py_ssize_t, memory=bytearray, data="const unsigned char*", at=Py_ssize_t,
        end=Py_ssize_t, length=Py_ssize_t, after=Py_ssize_t, stop=Py_ssize_t,
    )
    cpdef list advance(self, Py_ssize_t count, list inbox)
