"""Parses the result of a query: a result without the expected row, column or number is a ``ProtocolError``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aiorepl.errors import ProtocolError


@contextlib.contextmanager
def parsing(command: str) -> Iterator[None]:
    """Read the rows of ``command`` within this context.

    :raises ProtocolError: a row or column is missing, or a value is invalid. The message quotes no value.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"the server's result is not one that PostgreSQL returns ({type(error).__name__}): check that the DSN names a PostgreSQL "
            "server",
            message=command,
        ) from None
