from aiorepl cimport octets
from aiorepl.values.forms cimport Binary


cdef class Bytea(Binary):
    pass
