cimport cython

from aiorepl cimport byteops

cdef unsigned char _COPY, _QUOTE, _STRING, _NUMBER, _BOOLEAN, _DOCUMENT, _NINE, _T, _F, _MINUS, _ZERO


@cython.locals(data="const unsigned char*")
cpdef bint put_styled(bytearray out, bytes raw, Py_ssize_t start, Py_ssize_t end, unsigned char style) except -1
