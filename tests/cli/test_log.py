"""The log of a command, as text and as JSON."""

from __future__ import annotations

import json
import logging

from aiorepl.cli.log import JsonFormatter, Log


def record(**fields):
    return logging.makeLogRecord(
        {
            "name": "aiorepl.sink",
            "levelname": "WARNING",
            "created": 0.5,
            "msg": "sink %s",
            "args": ("s",),
            **fields,
        }
    )


def test_json():
    """One line has time, level, logger, message, and the fields of its own."""
    assert {
        "time": "1970-01-01T00:00:00.500+00:00",
        "level": "warning",
        "logger": "aiorepl.sink",
        "message": "sink s",
        "sink": "s",
    } == json.loads(JsonFormatter().format(record(sink="s")))


def test_a_service(capsys):
    """Only a service's lines have a time and a level."""
    log = Log()
    log.error("one")
    log.be_a_service()
    log.error("two")
    first, second = capsys.readouterr().err.splitlines()
    assert "aiorepl: one" == first
    assert second.endswith("+00:00 ERROR two")
