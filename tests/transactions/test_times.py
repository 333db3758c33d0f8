"""PostgreSQL's microseconds since 2000 as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.formats import named
from aiorepl.formats.format import iso_time
from aiorepl.lsn import LSN
from aiorepl.pgoutput.decoder import Decoder
from aiorepl.testing import messages as build
from aiorepl.transactions.assembler import Assembler
from aiorepl.transactions.transaction import Transaction, from_datetime, to_datetime
from aiorepl.values import Types

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


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
    """The datetime is exact to the microsecond, before and after the epoch, in UTC."""
    assert (expected, UTC) == (to_datetime(microseconds), to_datetime(microseconds).tzinfo)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9, minutes=30))])))
def test_round_trip(moment):
    """Every datetime, from any time zone, has the same instant after a round trip."""
    try:
        expected = moment.astimezone(UTC)
    except OverflowError:  # within hours of year 1 or 9999 in another zone
        return
    assert expected == to_datetime(from_datetime(moment))


@pytest.mark.parametrize("microseconds", [2**63 - 1, -(2**63)])
def test_no_such_year(microseconds):
    """A time outside of the years 1 to 9999 is an error that says so."""
    with pytest.raises(OverflowError):
        to_datetime(microseconds)


@pytest.mark.parametrize(
    ("microseconds", "text", "moment"),
    [
        (252_455_616_000_000_000, "+10000-01-01T00:00:00.000000Z", LAST),
        (9_223_371_331_199_999_999, "+294276-12-31T23:59:59.999999Z", LAST),
        (-63_082_281_600_000_001, "+0000-12-31T23:59:59.999999Z", FIRST),
        (-(2**63), "-290278-12-22T19:59:05.224192Z", FIRST),
    ],
)
def test_commits_beyond_what_python_has_years_for(microseconds, text, moment):
    """A commit time after the year 9999 is the latest datetime."""
    assert text == iso_time(microseconds)
    assert moment == Transaction(5, LSN(16), microseconds).commit_time


@given(st.integers(-(2**63), 2**63 - 1))
def test_any_commit_time_is_text(microseconds):
    """Every time that the protocol can carry has a text, and later ones are later."""
    year, _, rest = iso_time(microseconds).rpartition("-")[0].rpartition("-")
    later, _, further = (
        iso_time(min(microseconds + 86_400_000_000 * 366, 2**63 - 1)).rpartition("-")[0].rpartition("-")
    )
    assert (int(year), int(rest)) <= (int(later), int(further))


@pytest.mark.parametrize("name", ["native", "debezium", "cloudevents", "wal2json", "pretty"])
def test_in_every_format(name):
    """Every format writes events of a commit after the year 9999."""
    time = 9_223_371_331_199_999_999
    payloads = [
        build.begin(final_lsn=16, commit_time=time, xid=5),
        build.relation(oid=7, name="t", columns=[build.column("id", 23)]),
        build.insert(relation=7, new=["1"]),
        build.commit(commit_lsn=16, end_lsn=24, commit_time=time),
    ]
    slices = Assembler(Types()).feed(map(Decoder().decode, payloads))

    assert all(named(name, boundaries=True).events(slices))
