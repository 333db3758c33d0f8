# octets.py in C, for the modules that are compiled. Lengths were compared by the caller.

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy


cdef inline Py_ssize_t uint16(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <Py_ssize_t>data[at] << 8 | data[at + 1]


cdef inline Py_ssize_t uint32(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <Py_ssize_t>data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


cdef inline unsigned long long uint64(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <unsigned long long>uint32(data, at) << 32 | <unsigned long long>uint32(data, at + 4)


cdef inline long long int64(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <long long>uint64(data, at)


cdef inline bytes cut(const unsigned char* data, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char*>data + start, end - start)


# ``out`` grows by an eighth more than is needed each time, so appending costs a comparison and a copy.
cdef inline char* more(bytearray out, Py_ssize_t count) except NULL:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(out)
    PyByteArray_Resize(out, size + count)
    return PyByteArray_AS_STRING(out) + size


cdef inline int put(bytearray out, bytes data) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    memcpy(more(out, size), PyBytes_AS_STRING(data), size)
    return 0


cdef inline int put_quoted(bytearray out, bytes data) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef char* place = more(out, size + 2)
    place[0] = c'"'
    memcpy(place + 1, PyBytes_AS_STRING(data), size)
    place[size + 1] = c'"'
    return 0


cdef inline int put_number(bytearray out, long long number) except -1:
    cdef char digits[20]
    cdef Py_ssize_t at = 20
    cdef unsigned long long rest = <unsigned long long>-number if number < 0 else <unsigned long long>number
    while True:
        at -= 1
        digits[at] = c'0' + <char>(rest % 10)
        rest //= 10
        if not rest:
            break
    if number < 0:
        at -= 1
        digits[at] = c'-'
    memcpy(more(out, 20 - at), digits + at, 20 - at)
    return 0


# Without a branch in the loop, so that the C compiler looks at many bytes at once.
cdef inline bint is_plain(bytes data) noexcept:
    cdef const unsigned char* text = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at
    cdef unsigned char odd = 0, each
    for at in range(size):
        each = text[at]
        odd |= (each < 0x20) | (each == c'"') | (each == c'\\') | (each > 0x7e)
    return not odd
