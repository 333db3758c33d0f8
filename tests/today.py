"""Chooses the cases of a day, where all of them take too long for each run.

A test with cases at the steps 1, 2, 3 and so on takes every sixth case. The day chooses the first case, so each case runs at least
once in seven days. In the same way, a run of the whole suite takes every sixth of the tests with the marker ``by_day``. A
run of chosen tests takes all of them, unless it has the option ``--by-day``. ``AIOREPL_TEST_DAY`` repeats the cases of another day;
pytest's header shows the day.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

VARIABLE: Final = "AIOREPL_TEST_DAY"
# Whether this is a run of the whole suite; workers do not see how pytest was called.
WHOLE: Final = "AIOREPL_TEST_WHOLE_SUITE"
# Less than the 7 days of a week, so that each part has a day in every week.
PARTS: Final = 6

T = TypeVar("T")


def day() -> int:
    """Return the number of the day on which this run began, in UTC."""
    # Set once for the processes of a run, which may last over midnight.
    return int(os.environ.setdefault(VARIABLE, str(dt.datetime.now(dt.UTC).date().toordinal())))


def of_today(cases: Iterable[T]) -> Iterator[T]:
    """Return every sixth case, in order."""
    return islice(cases, day() % PARTS, None, PARTS)
