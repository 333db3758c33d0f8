# delimiters.py in C, for compiled modules.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memset


cdef inline bytes any_of(bytes characters):
    cdef const unsigned char* text = <const unsigned char*>PyBytes_AS_STRING(characters)
    cdef bytes table = PyBytes_FromStringAndSize(NULL, 256)
    cdef char* flags = PyBytes_AS_STRING(table)
    cdef Py_ssize_t at
    memset(flags, 0, 256)
    for at in range(PyBytes_GET_SIZE(characters)):
        flags[text[at]] = 1
    return table


cdef inline Py_ssize_t find(const unsigned char* data, Py_ssize_t start, Py_ssize_t end, bytes marks) noexcept:
    cdef const char* flags = PyBytes_AS_STRING(marks)
    while start < end and not flags[data[start]]:
        start += 1
    return start if start < end else end


cdef inline Py_ssize_t closing(const unsigned char* data, Py_ssize_t start, Py_ssize_t end, bint doubled) noexcept:
    while start < end:
        if data[start] == c'\\' or (doubled and data[start] == c'"' and start + 1 < end and data[start + 1] == c'"'):
            start += 2
        elif data[start] == c'"':
            return start
        else:
            start += 1
    return -1


cdef inline bytes unescaped(bytes data, Py_ssize_t start, Py_ssize_t end):
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t at = start, size = 0
    cdef bytes found
    cdef char* target
    while at < end:
        at += 2 if text[at] == c'\\' or text[at] == c'"' else 1
        size += 1
    found = PyBytes_FromStringAndSize(NULL, size)
    target = PyBytes_AS_STRING(found)
    at = start
    while at < end:
        if text[at] == c'\\' or text[at] == c'"':
            at += 1
        target[0] = text[at]
        target += 1
        at += 1
    return found
