"""The logical messages that are meant for aiorepl itself, and never for sinks."""

from __future__ import annotations

from typing import Final

from aiorepl.pgoutput import messages as m

WATERMARK: Final = "aiorepl.snapshot"
"""The prefix of watermarks, which a snapshot writes between its chunks."""
SIGNAL: Final = "aiorepl.signal"
"""The prefix of signals, by which users request snapshots."""

_PREFIXES: Final = frozenset((WATERMARK, SIGNAL))


def is_control(message: m.Message) -> bool:
    """Whether the message is a watermark or a signal. Both are not transactional, so that they arrive at once."""
    return not message.transactional and message.prefix in _PREFIXES
