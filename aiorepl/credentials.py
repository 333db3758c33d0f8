"""Credentials that expire: a DSN in a file, and the output of a command as the password. Both are read for every connection."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from aiorepl.dsn import without_driver
from aiorepl.errors import ConfigurationError, ConnectionFailed

FILE: Final = "file:"
"""The prefix of a DSN that names a file with the DSN."""

# asyncpg's time-out does not apply to a password function.
_SECONDS: Final = 30.0
_MOST_BYTES: Final = 65_536


def is_file(dsn: str | None) -> bool:
    """Whether a DSN names a file that contains the DSN."""
    return dsn is not None and dsn.startswith(FILE) and not dsn.startswith(f"{FILE}//")


def expire(dsn: str | None, arguments: Mapping[str, Any]) -> bool:
    """Whether another attempt to connect may have other credentials.

    :param arguments: the arguments of ``asyncpg.connect``.
    """
    return is_file(dsn) or callable(arguments.get("password"))


async def current_dsn(dsn: str | None) -> str | None:
    """Return the DSN, or the text of the file that it names.

    :raises ConnectionFailed: the file cannot be read.
    """
    if dsn is None:
        return None
    if not is_file(dsn):
        return without_driver(dsn)
    path = Path(dsn.removeprefix(FILE))
    try:
        text = await asyncio.to_thread(path.read_text, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConnectionFailed(f"the DSN's file {path} cannot be read: {reason}") from None
    return without_driver(text.strip())


class PasswordCommand:
    """A password function for asyncpg: runs a command, and returns its output without the line end.

    :param command: the program and its arguments; no shell reads them.
    :raises ConfigurationError: the command is not a program with its arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        if isinstance(command, str) or not command or not all(isinstance(word, str) for word in command):
            raise ConfigurationError(
                'password_command must be a list of a program and its arguments, such as ["aws", "rds", "generate-db-auth-token"]'
            )
        self._command = tuple(command)

    async def __call__(self) -> str:
        """Run the command.

        :raises ConnectionFailed: the command cannot be started, fails, or prints no password.
        """
        # Errors quote neither the command's output nor its messages, because either may contain the password.
        name = self._command[0]
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise ConnectionFailed(
                f"password_command: {name} cannot be started: {reason}", permanent=True
            ) from None
        try:
            async with asyncio.timeout(_SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            raise ConnectionFailed(
                f"password_command: {name} did not end within {_SECONDS:g} s: run it yourself to see why"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode != 0:
            raise ConnectionFailed(
                f"password_command: {name} has failed with exit code {process.returncode}: run it yourself to see why"
            )
        password = output.decode(errors="replace").rstrip("\r\n")
        if not password or "\n" in password or len(output) > _MOST_BYTES:
            raise ConnectionFailed(
                f"password_command: {name} must print the password as one line, and nothing else"
            )
        return password

    def __repr__(self) -> str:
        return f"PasswordCommand({self._command[0]!r}, …)"
