# objects.py in C, for compiled modules.

from cpython.object cimport PyObject, PyObject_GenericSetAttr, PyTypeObject

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t items)


cdef inline object bare(object kind):
    return PyType_GenericAlloc(<PyTypeObject*>kind, 0)


cdef inline int set_field(object value, object name, object content) except -1:
    return PyObject_GenericSetAttr(value, name, content)
