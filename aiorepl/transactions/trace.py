"""The trace context that a writer gives its transaction, in logical messages: https://www.w3.org/TR/trace-context/. Pure.

SELECT pg_logical_emit_message(true, 'traceparent', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01');
SELECT pg_logical_emit_message(true, 'tracestate', 'vendor=t61rcWkgMzE');   -- optional, after it
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# Later versions may append fields. An id of zeros is invalid.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<rest>-[\x21-\x7e]{1,200})?"
)
# The pattern of one member. The list is split first, because a pattern of the whole list would backtrack exponentially
# over spaces.
_MEMBER: Final = re.compile(r"[a-z0-9][^=,]*=[^=,]+")
_MOST_TRACESTATE: Final = 512


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A trace context, valid as HTTP headers of these names.

    :param traceparent: identifies the trace and the writer's span.
    :param tracestate: the vendors' part; ``None`` if the writer gave none.
    """

    traceparent: str
    tracestate: str | None = None


def traced(before: TraceContext | None, prefix: str, content: bytes) -> TraceContext | None:
    """Return the trace context after a message. An invalid message changes nothing.

    :param before: the context before it; a ``tracestate`` without one is ignored.
    :param prefix: the message's prefix: ``traceparent``, ``tracestate``, or any other one, which changes nothing.
    """
    text = content.decode("latin-1")
    if prefix == TRACEPARENT:
        found = _TRACEPARENT.fullmatch(text)
        if found is not None and not (text.startswith("00") and found["rest"]):
            return TraceContext(text)
    elif prefix == TRACESTATE and before is not None:
        printable = text.isascii() and text.isprintable() and len(text) <= _MOST_TRACESTATE
        if printable and _is_list(text):
            return replace(before, tracestate=text)
    return before


def _is_list(text: str) -> bool:
    """Whether this is a ``tracestate``: members with commas between them. All members except the first may be empty."""
    first, *others = text.split(",")
    return (
        text == text.strip()
        and _MEMBER.fullmatch(first) is not None
        and all(not member or _MEMBER.fullmatch(member) for member in (each.strip() for each in others))
    )
