"""interval, which Python's ``timedelta`` cannot hold: a month has no fixed number of days, nor a day of hours.

Python value: ``Interval``. ``infinity`` and ``-infinity`` (PostgreSQL 17) stay ``str``.

Source: ``interval_send``, ``EncodeInterval`` with IntervalStyle postgres.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from aiorepl.values.codec import Malformed, codec, quoted

_INTERVAL: Final = struct.Struct("!qii")
# Before 17 these are the extremes of the range and print as such; a value that no one meets is the price of not
# having to know the server's version here.
_INFINITY: Final = {
    (2**63 - 1, 2**31 - 1, 2**31 - 1): "infinity",
    (-(2**63), -(2**31), -(2**31)): "-infinity",
}
_POSTGRES: Final = re.compile(
    r"(?:([+-]?\d+) years?)? ?(?:([+-]?\d+) mons?)? ?(?:([+-]?\d+) days?)? ?"
    r"(?:([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?"
)


@dataclass(frozen=True, slots=True)
class Interval:
    """Months, days and microseconds, kept apart as PostgreSQL keeps them. ``str()`` gives PostgreSQL's text."""

    months: int = 0
    days: int = 0
    microseconds: int = 0

    def __str__(self) -> str:
        years, months = divmod(abs(self.months), 12)
        if self.months < 0:
            years, months = -years, -months
        parts = []
        negative = False
        for value, unit in ((years, "year"), (months, "mon"), (self.days, "day")):
            if value:
                # A plus is written only where a minus before it would else seem to cover this part too.
                sign = "+" if negative and value > 0 else ""
                parts.append(f"{sign}{value} {unit}{'' if value == 1 else 's'}")
                negative = value < 0
        if self.microseconds or not parts:
            seconds, fraction = divmod(abs(self.microseconds), 1_000_000)
            minutes, second = divmod(seconds, 60)
            hour, minute = divmod(minutes, 60)
            sign = "-" if self.microseconds < 0 else "+" if negative else ""
            behind_point = f".{fraction:06d}".rstrip("0") if fraction else ""
            parts.append(f"{sign}{hour:02d}:{minute:02d}:{second:02d}{behind_point}")
        return " ".join(parts)


def _read_interval(raw: bytes) -> Interval | str:
    text = str(raw, "ascii")
    match = _POSTGRES.fullmatch(text)
    if match is None or not text.strip():
        if text in ("infinity", "-infinity"):
            return text
        raise Malformed("not in IntervalStyle postgres")
    years, months, days, sign, hour, minute, second, fraction = match.groups("0")
    microseconds = ((int(hour) * 60 + int(minute)) * 60 + int(second)) * 1_000_000 + int(
        fraction.ljust(6, "0")
    )
    return Interval(
        months=int(years) * 12 + int(months),
        days=int(days),
        microseconds=-microseconds if sign == "-" else microseconds,
    )


def _read_interval_binary(raw: bytes) -> Interval | str:
    microseconds, days, months = _INTERVAL.unpack(raw)
    infinity = _INFINITY.get((microseconds, days, months))
    return Interval(months, days, microseconds) if infinity is None else infinity


def _print_interval(raw: bytes) -> str:
    return str(_read_interval_binary(raw))


CODECS: Final = {"interval": codec(_read_interval, _read_interval_binary, _print_interval, quoted)}
