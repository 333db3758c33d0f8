cimport cython

from aiorepl cimport byteops
from aiorepl.values cimport objects
from aiorepl.values.forms cimport Binary, Form

cdef unsigned char _IPV4, _IPV6, _ZERO, _NINE, _SMALL_A, _SMALL_F, _DOT, _COLON, _SLASH
cdef unsigned int _MAPPED
cdef object IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, _ONE


cdef class Inet(Binary):
    cdef bint _known

    @cython.locals(data="const unsigned char*", bits="int", number=object)
    cpdef object read(self, bytes raw)

    cpdef object value(self, object number, int mask, int bits)

    @cython.locals(data="const unsigned char*", bits="int")
    cpdef void put(self, bytearray out, bytes raw) except *


cdef class Cidr(Inet):
    pass


cdef class AddressText(Form):
    cdef Inet _binary
    cdef object _parse

    @cython.locals(
        data="const unsigned char*", size=Py_ssize_t, end=Py_ssize_t, at=Py_ssize_t, mask="int", number="long long",
        address=bytes,
    )
    cpdef object read(self, bytes raw)


cdef class MacAddress(Binary):
    cdef Py_ssize_t _width


@cython.locals(data="const unsigned char*", size=Py_ssize_t, bits="int")
cdef int _bits(bytes raw) except -1

@cython.locals(number="int", index=Py_ssize_t)
cdef int _decimal(const unsigned char* data, Py_ssize_t at, Py_ssize_t end, int highest) noexcept

@cython.locals(address="long long", parts="int", number="int", start=Py_ssize_t)
cdef long long _ipv4(const unsigned char* data, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(
    made=bytes, target="unsigned char*", count="int", at=Py_ssize_t, gap="int", start=Py_ssize_t, word="unsigned int",
    digit="unsigned char", address="long long", shift="int", back="int", moved=bint,
)
cdef bytes _ipv6(const unsigned char* data, Py_ssize_t end)

@cython.locals(data="const unsigned char*")
cdef object _number(bytes address)

@cython.locals(data="const unsigned char*", gap="int", longest="int", length="int", word="int")
cdef void _put_address(bytearray out, bytes raw, int bits) except *

@cython.locals(index=Py_ssize_t)
cdef void _put_ipv4(bytearray out, const unsigned char* data, Py_ssize_t at) except *
