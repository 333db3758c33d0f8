# byteops.py in C, for compiled modules. The caller has compared lengths.

from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_GET_SIZE,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_FromString
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.math cimport fabs, isfinite, signbit
from libc.string cimport memchr, memcmp, memcpy


cdef inline Py_ssize_t uint16(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <Py_ssize_t>data[at] << 8 | data[at + 1]


cdef inline Py_ssize_t uint32(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <Py_ssize_t>data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


cdef inline unsigned long long uint64(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <unsigned long long>uint32(data, at) << 32 | <unsigned long long>uint32(data, at + 4)


cdef inline object uint128(const unsigned char* data, Py_ssize_t at):
    return <object>uint64(data, at) << 64 | uint64(data, at + 8)


cdef inline long long int64(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <long long>uint64(data, at)


cdef inline short int16(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <short>uint16(data, at)


cdef inline int int32(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    return <int>uint32(data, at)


cdef inline double float32(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    cdef unsigned int bits = <unsigned int>uint32(data, at)
    cdef float value
    memcpy(&value, &bits, 4)
    return value


cdef inline double float64(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    cdef unsigned long long bits = uint64(data, at)
    cdef double value
    memcpy(&value, &bits, 8)
    return value


cdef inline double single(double value) except? -1:
    cdef float nearest = <float>value
    if isfinite(value) and not isfinite(nearest):
        raise OverflowError
    return nearest


cdef inline double single_beside(double value, int step) noexcept nogil:
    cdef float beside = <float>value
    cdef unsigned int bits
    memcpy(&bits, &beside, 4)
    bits += step
    memcpy(&beside, &bits, 4)
    return beside


cdef inline object integer(bytes data):
    return integer_in(data, 0, PyBytes_GET_SIZE(data))


# Python parses all text other than a sign and up to 18 digits.
cdef inline object integer_in(bytes data, Py_ssize_t start, Py_ssize_t end):
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef bint negative = start < end and text[start] == c'-'
    cdef long long number = 0
    cdef Py_ssize_t at
    if not negative < end - start <= 18:
        return int(data[start:end])
    for at in range(start + negative, end):
        if not c'0' <= text[at] <= c'9':
            return int(data[start:end])
        number = number * 10 + (text[at] - c'0')
    return -number if negative else number


# The value of a hexadecimal digit, or -1. Without a branch, because the CPU could not predict it.
cdef inline int nibble(unsigned char digit) noexcept nogil:
    cdef int known = (<unsigned char>(digit - c'0') < 10) | (<unsigned char>((digit | 0x20) - c'a') < 6)
    return ((digit & 15) + 9 * (digit >> 6)) | (known - 1)


cdef inline object hex128(bytes data):
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef unsigned long long high = 0, low = 0
    cdef Py_ssize_t at
    cdef int digits = 0, digit
    for at in range(PyBytes_GET_SIZE(data)):
        if text[at] == c'-':
            continue
        digit = nibble(text[at])
        if digit < 0 or digits == 32:
            raise ValueError
        high = high << 4 | low >> 60
        low = low << 4 | <unsigned int>digit
        digits += 1
    if digits != 32:
        raise ValueError
    return <object>high << 64 | low


# Digits that make an integer below 2^53, over a power of ten that a float8 has exactly: their quotient is rounded as
# reading the decimal would. Python parses all other text.
cdef inline double decimal(bytes data, Py_ssize_t start, Py_ssize_t end) except? -1:
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef bint negative = start < end and text[start] == c'-'
    cdef Py_ssize_t at = start + negative, point = end
    cdef unsigned long long number = 0
    cdef double power = 1, value
    if 0 < end - at <= 16 and c'0' <= text[at] <= c'9':
        while at < end:
            if c'0' <= text[at] <= c'9':
                number = number * 10 + (text[at] - c'0')
                if point < end:
                    power *= 10
            elif text[at] == c'.' and point == end and at + 1 < end:
                point = at
            else:
                break
            at += 1
        if at == end and number < 1ULL << 53:
            value = number / power
            return -value if negative else value
    # Not float(...): Cython's own function accepts underscores that Python's refuses.
    return PyFloat_FromString(PyBytes_FromStringAndSize(text + start, end - start))


cdef inline unsigned long long magnitude(long long number) noexcept nogil:
    return 0 - <unsigned long long>number if number < 0 else <unsigned long long>number


cdef inline bint has_long_number(bytes data) noexcept:
    cdef const unsigned char* text = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t at
    cdef int digits = 0
    for at in range(PyBytes_GET_SIZE(data)):
        digits = digits + 1 if c'0' <= text[at] <= c'9' else 0
        if digits == 19:
            return True
    return False


cdef inline bint has_at(bytes data, Py_ssize_t at, bytes part) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(part)
    return size <= PyBytes_GET_SIZE(data) - at and memcmp(PyBytes_AS_STRING(data) + at, PyBytes_AS_STRING(part), size) == 0


cdef inline Py_ssize_t zero_at(bytes data, Py_ssize_t start) noexcept:
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef const char* found = NULL
    if start < size:
        found = <const char*>memchr(text + start, 0, size - start)
    return -1 if found is NULL else found - text


cdef inline bint only_bits(bytes data) noexcept:
    cdef const char* text = PyBytes_AS_STRING(data)
    cdef Py_ssize_t at
    for at in range(PyBytes_GET_SIZE(data)):
        if text[at] != c'0' and text[at] != c'1':
            return False
    return True


cdef inline bytes cut(const unsigned char* data, Py_ssize_t start, Py_ssize_t end):
    return PyBytes_FromStringAndSize(<const char*>data + start, end - start)


# New bytes, without other references, may be written to.
cdef inline bytes blank(Py_ssize_t size):
    return PyBytes_FromStringAndSize(NULL, size)


cdef inline bytes done(bytes blank):
    return blank


cdef inline bytearray buffer():
    return PyByteArray_FromStringAndSize(NULL, 0)


cdef inline str text_in(bytes data, Py_ssize_t start, Py_ssize_t end):
    return PyUnicode_DecodeUTF8(PyBytes_AS_STRING(data) + start, end - start, NULL)


cdef inline str text(bytearray out):
    return PyUnicode_DecodeUTF8(PyByteArray_AS_STRING(out), PyByteArray_GET_SIZE(out), NULL)


# ``out`` grows by an eighth more than needed, so that most appends are a comparison and a copy.
cdef inline char* more(bytearray out, Py_ssize_t count) except NULL:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(out)
    PyByteArray_Resize(out, size + count)
    return PyByteArray_AS_STRING(out) + size


cdef inline int put(bytearray out, bytes data) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    memcpy(more(out, size), PyBytes_AS_STRING(data), size)
    return 0


cdef inline int put_part(bytearray out, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    memcpy(more(out, end - start), PyBytes_AS_STRING(data) + start, end - start)
    return 0


cdef inline int put_range(bytearray out, const unsigned char* data, Py_ssize_t start, Py_ssize_t end) except -1:
    memcpy(more(out, end - start), data + start, end - start)
    return 0


cdef inline Py_ssize_t extend(bytearray out, Py_ssize_t count) except -1:
    more(out, count)
    return PyByteArray_GET_SIZE(out) - count


cdef inline int shorten(bytearray out, Py_ssize_t size) except -1:
    PyByteArray_Resize(out, size)
    return 0


cdef inline void set_int16(unsigned char* target, Py_ssize_t at, short number) noexcept nogil:
    memcpy(target + at, &number, 2)


cdef inline void set_int32(unsigned char* target, Py_ssize_t at, int number) noexcept nogil:
    memcpy(target + at, &number, 4)


cdef inline void set_int64(unsigned char* target, Py_ssize_t at, long long number) noexcept nogil:
    memcpy(target + at, &number, 8)


cdef inline long long native_int64(const unsigned char* data, Py_ssize_t at) noexcept nogil:
    cdef long long number
    memcpy(&number, data + at, 8)
    return number


cdef inline bint is_same(const unsigned char* data, Py_ssize_t one, Py_ssize_t other, Py_ssize_t size) noexcept nogil:
    return memcmp(data + one, data + other, size) == 0


cdef inline void copy_into(
    unsigned char* target, Py_ssize_t at, const unsigned char* data, Py_ssize_t start, Py_ssize_t end
) noexcept nogil:
    memcpy(target + at, data + start, end - start)


cdef inline int put_framed(bytearray out, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    cdef Py_ssize_t rest = PyBytes_GET_SIZE(data) - end, left = start + rest
    cdef char* target = more(out, 4 + left)
    target[0] = <char>(left >> 24)
    target[1] = <char>(left >> 16)
    target[2] = <char>(left >> 8)
    target[3] = <char>left
    memcpy(target + 4, PyBytes_AS_STRING(data), start)
    memcpy(target + 4 + start, PyBytes_AS_STRING(data) + end, rest)
    return 0


# Converts in place, from ``start`` on.
cdef inline int enclose(bytearray out, Py_ssize_t start) except -1:
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(out) - start
    cdef char* target = more(out, 2) - size
    cdef Py_ssize_t at
    for at in range(size, 0, -1):
        target[at] = target[at - 1]
    target[0] = c'"'
    target[size + 1] = c'"'
    return 0


cdef inline int put_quoted(bytearray out, bytes data) except -1:
    return put_quoted_in(out, data, 0, PyBytes_GET_SIZE(data))


cdef inline int put_quoted_in(bytearray out, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    cdef char* target = more(out, end - start + 2)
    target[0] = c'"'
    memcpy(target + 1, PyBytes_AS_STRING(data) + start, end - start)
    target[end - start + 1] = c'"'
    return 0


cdef inline int put_signed(bytearray out, unsigned long long rest, bint negative) except -1:
    cdef char digits[21]
    cdef Py_ssize_t at = 21
    while True:
        at -= 1
        digits[at] = c'0' + <char>(rest % 10)
        rest //= 10
        if not rest:
            break
    if negative:
        at -= 1
        digits[at] = c'-'
    memcpy(more(out, 21 - at), digits + at, 21 - at)
    return 0


cdef inline int put_number(bytearray out, long long number) except -1:
    return put_signed(out, magnitude(number), number < 0)


cdef inline int put_unsigned(bytearray out, unsigned long long number) except -1:
    return put_signed(out, number, False)


cdef inline int put_padded(bytearray out, unsigned long long number, Py_ssize_t width) except -1:
    cdef char* target = more(out, width)
    while width:
        width -= 1
        target[width] = c'0' + <char>(number % 10)
        number //= 10
    return 0


cdef inline int put_hex(bytearray out, bytes data, Py_ssize_t start, Py_ssize_t end) except -1:
    cdef const unsigned char* text = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef const char* digits = "0123456789abcdef"
    cdef char* target = more(out, 2 * (end - start))
    cdef Py_ssize_t at
    for at in range(start, end):
        target[0] = digits[text[at] >> 4]
        target[1] = digits[text[at] & 15]
        target += 2
    return 0


cdef inline int put_hex_apart(bytearray out, bytes data) except -1:
    cdef const unsigned char* text = <const unsigned char*>PyBytes_AS_STRING(data)
    cdef const char* digits = "0123456789abcdef"
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at
    if not size:
        return 0
    cdef char* target = more(out, 3 * size - 1)
    for at in range(size):
        if at:
            target[3 * at - 1] = c':'
        target[3 * at] = digits[text[at] >> 4]
        target[3 * at + 1] = digits[text[at] & 15]
    return 0


cdef inline int put_hex_number(bytearray out, unsigned long long number, char ten) except -1:
    cdef char digits[16]
    cdef Py_ssize_t at = 16
    cdef char digit
    while True:
        at -= 1
        digit = <char>(number & 15)
        digits[at] = c'0' + digit if digit < 10 else ten - 10 + digit
        number >>= 4
        if not number:
            break
    memcpy(more(out, 16 - at), digits + at, 16 - at)
    return 0


cdef inline int put_bits(bytearray out, bytes data, Py_ssize_t start, Py_ssize_t count) except -1:
    cdef const unsigned char* text = <const unsigned char*>PyBytes_AS_STRING(data) + start
    cdef char* target = more(out, count)
    cdef Py_ssize_t at
    for at in range(count):
        target[at] = c'0' + <char>(text[at >> 3] >> (7 - (at & 7)) & 1)
    return 0


cdef inline bytes unhex(bytes data, Py_ssize_t start):
    cdef const char* text = PyBytes_AS_STRING(data) + start
    cdef Py_ssize_t size = (PyBytes_GET_SIZE(data) - start) // 2, at
    cdef bytes found = PyBytes_FromStringAndSize(NULL, size)
    cdef char* target = PyBytes_AS_STRING(found)
    cdef int high, low, wrong = (PyBytes_GET_SIZE(data) - start) & 1
    for at in range(size):
        high = nibble(text[2 * at])
        low = nibble(text[2 * at + 1])
        wrong |= (high | low) < 0
        target[at] = <char>(<unsigned int>high << 4 | <unsigned int>low)
    if wrong:
        raise ValueError
    return found


# No two decimals of up to 15 digits are the same float8. So one that reads back as ``value`` is the only one, hence the
# shortest; and a quotient of two integers below 2^53 is rounded as reading the decimal would.
cdef inline bint put_short(bytearray out, double value) except -1:
    cdef double size = fabs(value)
    cdef unsigned long long power = 1, scaled
    cdef int places
    if not (1e-4 <= size < 1e9 or size == 0):
        return False
    for places in range(7):
        scaled = <unsigned long long>(size * power + 0.5)
        if scaled / <double>power == size:
            if signbit(value):
                put(out, b"-")
            put_number(out, scaled // power)
            if places:
                put(out, b".")
                put_padded(out, scaled % power, places)
            return True
        power *= 10
    return False


cdef inline bint is_plain(bytes data) noexcept:
    return is_plain_in(<const unsigned char*>PyBytes_AS_STRING(data), 0, PyBytes_GET_SIZE(data))


# Without a branch in the loop, so that the C compiler vectorizes it.
cdef inline bint is_plain_in(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef unsigned char odd = 0, each
    cdef Py_ssize_t at
    for at in range(start, end):
        each = data[at]
        odd |= (each < 0x20) | (each == c'"') | (each == c'\\') | (each > 0x7e)
    return not odd


# As above.
cdef inline bint is_ascii(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    cdef unsigned char high = 0
    cdef Py_ssize_t at
    for at in range(start, end):
        high |= data[at]
    return high < 0x80


# As above.
cdef inline bint is_one_line(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef unsigned char odd = 0, high = 0
    cdef Py_ssize_t at
    for at in range(start, end):
        odd |= (data[at] == c'\n') | (data[at] == c'\r')
        high |= data[at]
    return not odd and (high < 0x80 or is_utf8(data, start, end))


# Neither longer than it needs to be, nor a surrogate, nor beyond U+10FFFF: what str.decode takes.
cdef inline bint is_utf8(const unsigned char* data, Py_ssize_t start, Py_ssize_t end) noexcept:
    cdef Py_ssize_t at = start
    cdef int more
    cdef unsigned char first, least, most
    cdef unsigned long long eight
    while at < end:
        while end - at >= 8:
            memcpy(&eight, data + at, 8)
            if eight & 0x8080808080808080ULL:
                break
            at += 8
        if at == end:
            return True
        first = data[at]
        at += 1
        if first < 0x80:
            continue
        least, most = 0x80, 0xbf
        if 0xc2 <= first < 0xe0:
            more = 1
        elif 0xe0 <= first < 0xf0:
            more = 2
            if first == 0xe0:
                least = 0xa0
            elif first == 0xed:
                most = 0x9f
        elif 0xf0 <= first < 0xf5:
            more = 3
            if first == 0xf0:
                least = 0x90
            elif first == 0xf4:
                most = 0x8f
        else:
            return False
        if end - at < more or not least <= data[at] <= most:
            return False
        at += 1
        while more > 1:
            if data[at] & 0xc0 != 0x80:
                return False
            at += 1
            more -= 1
    return True
