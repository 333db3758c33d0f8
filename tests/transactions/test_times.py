"""Commit times: PostgreSQL's microseconds since 2000, as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.transactions.transaction import from_datetime, to_datetime


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        (0, datetime(2000, 1, 1, tzinfo=UTC)),
        (1, datetime(2000, 1, 1, microsecond=1, tzinfo=UTC)),
        (-1, datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        (848_563_200_123_456, datetime(2026, 11, 21, 8, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_to_datetime(microseconds, expected):
    """To the microsecond, before and after the epoch, in UTC."""
    assert (expected, UTC) == (to_datetime(microseconds), to_datetime(microseconds).tzinfo)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9, minutes=30))])))
def test_round_trip(moment):
    """Every moment that a datetime can hold comes back the same, from any zone."""
    try:
        expected = moment.astimezone(UTC)
    except OverflowError:  # within hours of year 1 or 9999 in another zone
        return
    assert expected == to_datetime(from_datetime(moment))


@pytest.mark.parametrize("microseconds", [2**63 - 1, -(2**63)])
def test_no_such_year(microseconds):
    """Outside of the years 1 to 9999 there is no datetime, and it says so."""
    with pytest.raises(OverflowError):
        to_datetime(microseconds)
