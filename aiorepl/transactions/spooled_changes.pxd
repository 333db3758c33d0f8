cimport cython

from aiorepl cimport byteops
from aiorepl.pgoutput.decoder cimport Decoder
from aiorepl.pgoutput.rows cimport RowMessage
from aiorepl.transactions.changes cimport row_change
from aiorepl.transactions.rows cimport Layout


@cython.locals(
    changes=list, layouts=dict, layout=Layout, octets="const unsigned char*", at=Py_ssize_t, size=Py_ssize_t,
    begin=Py_ssize_t, row=RowMessage,
)
cpdef list decode_changes(
    bytes data, Decoder decoder, object transaction, object layout_of, Py_ssize_t ordinal, Py_ssize_t start,
    Py_ssize_t stop,
)
