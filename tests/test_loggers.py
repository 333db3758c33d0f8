"""Nothing from outside forges lines of a log, or speaks to a terminal through one."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest

import aiorepl
import aiorepl_sinks
from aiorepl.loggers import logger

FORGED = "items\n2026-11-23 ERROR forged \x1b[31m\u202e"
ESCAPED = "items\\n2026-11-23 ERROR forged \\x1b[31m\\u202e"
FOLDERS = (Path(aiorepl.__file__).parent, Path(aiorepl_sinks.__file__).parent)
# Loggers that only take a level, or a filter of their own.
OTHERS = {"aiorepl", "aiorepl.run", "stamina", "hpack", "aiokafka.conn", ""}


@pytest.mark.parametrize(
    "arguments", [("table %s", FORGED), (f"table {FORGED}",), ("table %(t)s", {"t": FORGED})]
)
def test_one_printable_line(arguments):
    """A message is one printable line under any handler and formatter, and a program's own records are as they were."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    names = ("aiorepl.test_loggers", "a_program.of.aiorepl")
    found = [logger(names[0]), logging.getLogger(names[1])]
    for each in found:
        each.addHandler(handler)
        each.propagate = False
        each.warning(*arguments)

    assert stream.getvalue() == f"WARNING table {ESCAPED}\nWARNING table {FORGED}\n"


def test_percent_signs():
    """Escaped text is not formatted again, and a record without such text keeps its arguments."""
    records = []
    made = logger("aiorepl.test_loggers.percent")
    made.addFilter(lambda record: records.append(record) or False)
    made.warning("%s is %d%% full", "a\nb %s", 7)
    made.warning("%s is %d%% full", "c", 7)

    assert [r"a\nb %s is 7% full", "c is 7% full"] == [record.getMessage() for record in records]
    assert ("c", 7) == records[1].args


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_logger(folder):
    """Modules make their loggers with ``logger``."""
    used = {
        name
        for path in folder.rglob("*.py")
        if path.name != "loggers.py"
        for name in re.findall(r"getLogger\(\"?([a-z.]*)", path.read_text(encoding="utf-8"))
    }

    assert used - {"logger"} <= OTHERS
