"""Makes the package's loggers. Each of their messages is one printable line, whatever handlers and formatters a program uses.

Names of tables, messages of servers and other texts from outside can contain line breaks and control characters, which would forge
lines of a log and colours of a terminal.
"""

from __future__ import annotations

import logging

from aiorepl.errors import printable


def logger(name: str) -> logging.Logger:
    """Return the logger of this name, whose records are made printable.

    A logger's filters do not see the records of the loggers below it, so each of ours has the filter.
    """
    found = logging.getLogger(name)
    found.addFilter(_make_printable)
    return found


def _make_printable(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    line = printable(message)
    if line != message:
        record.msg, record.args = line, ()
    return True
