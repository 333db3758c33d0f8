cimport cython

from aiorepl cimport byteops

cdef unsigned char _COPY_DATA
cdef Py_ssize_t _LARGEST


cdef class CopyFrames:
    cdef readonly bytearray data
    cdef bytearray _memory
    cdef Py_ssize_t _end, _left, _surplus

    @cython.locals(
        memory=bytearray, out=bytearray, data="const unsigned char*", at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t,
        length=Py_ssize_t, frames=list, filled=Py_ssize_t, target="unsigned char*",
    )
    cpdef list advance(self, Py_ssize_t count)
