"""Standard streams that the parent has closed (``aiorepl tail >&-``), or that cannot write every character."""

from __future__ import annotations

import io
import os
import sys


def replace_closed() -> None:
    """Put /dev/null in the place of closed standard streams.

    Otherwise the next file or socket would get the stream's number, and output to the stream would be written into it.
    Writing to a closed standard output stays an error, because output would be lost. Standard error is dropped.
    """
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        try:
            os.fstat(number)
        except OSError:
            _open_null(number, flags)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - until the exit


def escape_unencodable() -> None:
    """Let standard output escape a character that its encoding does not have, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _open_null(number: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened == number:
        os.set_inheritable(number, True)
    else:
        os.dup2(opened, number)
        os.close(opened)
