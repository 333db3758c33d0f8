"""What commands log to standard error: lines of text, or of JSON."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from aiorepl.errors import loggable
from aiorepl.loggers import logger

SHORT: Final = "aiorepl: %(message)s"
LONG: Final = "%(asctime)s %(levelname)s %(message)s"

# The attributes of every log record; each other attribute becomes a field.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, and the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """Formats the time as RFC 3339, in UTC."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """Format a record's time."""
        return _time(record)


class Log:
    """The log of one command on standard error.

    :param as_json: write lines of JSON.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self._handler = logging.StreamHandler(sys.stderr)
        self._handler.setFormatter(JsonFormatter() if as_json else TextFormatter(SHORT))
        # The command itself reports the error that ends a pipeline.
        self._handler.addFilter(lambda record: not hasattr(record, "fatal"))
        self._level = logging.WARNING

    @property
    def has_bars(self) -> bool:
        """Whether progress is drawn: standard error is a terminal, and its lines are text."""
        return sys.stderr.isatty() and isinstance(self._handler.formatter, TextFormatter)

    def begin(self, verbose: int) -> None:
        """Log what the packages log.

        :param verbose: 0 for warnings, 1 for what happens, 2 for everything.
        """
        self._level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
        logging.basicConfig(level=logging.WARNING, handlers=[self._handler])
        # Configure only our own logger, because verbose logs of client libraries may contain secrets and rows.
        logging.getLogger("aiorepl").setLevel(self._level)
        logger("aiorepl.progress").setLevel(min(self._level, logging.INFO))

    def be_a_service(self) -> None:
        """Give lines of text a time and a level, and log when the pipeline or the mirror begins and ends, and a mirror's batches."""
        if isinstance(self._handler.formatter, TextFormatter):
            self._handler.setFormatter(TextFormatter(LONG))
        for name in ("aiorepl.run", "aiorepl.spark"):
            logger(name).setLevel(min(self._level, logging.INFO))

    def error(self, text: str) -> None:
        """Write an error that ends the command."""
        self._write(logging.ERROR, text)

    def note(self, text: str) -> None:
        """Write what a user of the command has to know."""
        self._write(logging.INFO, text)

    def _write(self, level: int, text: str) -> None:
        record = logging.LogRecord("aiorepl", level, "", 0, text, None, None)
        click.echo(self._handler.format(record), err=True)


def is_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for lines of JSON. Errors of parsing are lines, too, so this must not depend on parsing."""
    return "--log-format=json" in arguments or ("--log-format", "json") in pairwise(arguments)


def placed(error: BaseException) -> str:
    """Return the loggable text of an error that aiorepl does not expect, and the file and line that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{loggable(error)} ({Path(place.filename).name}, line {place.lineno})"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
