"""The log of a command, as text and as JSON."""

from __future__ import annotations

import json
import logging

import pytest

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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--log-format", "json", "chekc"],
        ["--log-format=json"],
        ["--log-format", "json", "run", "--chekc"],
        ["--chekc", "--log-format=json", "run"],
        ["--log-format", "json", "slots", "drpo", "s"],
        ["run", "--log-format", "json", "none.toml"],
        ["--log-format", "json", "run", "none.toml"],
    ],
)
async def test_every_error_is_json(run, arguments):
    """Also a command or an option that does not exist, wherever ``--log-format`` is."""
    done = await run(*arguments)
    assert (2, "") == (done.code, done.out)
    (line,) = done.err.splitlines()
    assert "error" == json.loads(line)["level"]
