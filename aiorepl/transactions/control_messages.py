"""The logical messages that are meant for aiorepl itself, and never for sinks."""

from __future__ import annotations

from typing import Any, Final

import orjson

from aiorepl.pgoutput import messages as m

WATERMARK: Final = "aiorepl.snapshot"
"""The prefix of watermarks, which a snapshot writes between its chunks."""
SIGNAL: Final = "aiorepl.signal"
"""The prefix of signals, by which users request snapshots."""
PUBLICATION: Final = "aiorepl.publication"
"""The prefix of the transactional messages that triggers write in transactions with DDL or TRUNCATE. Their content has no effect."""

_PREFIXES: Final = frozenset((WATERMARK, SIGNAL))


def is_control(message: m.Message) -> bool:
    """Whether the message is a watermark or a signal. Both are not transactional, so that they arrive at once."""
    return not message.transactional and message.prefix in _PREFIXES


def without_content(message: m.Message) -> m.Message | None:
    """Remove the content of a transactional message with the prefix of a control message; return ``None`` for any other message.

    Such a message has no effect, but still counts as a change of its transaction. Its content is removed because the ``where`` of a
    signal may have values that must not reach sinks or journals.
    """
    if not message.transactional or message.prefix not in _PREFIXES or not message.content:
        return None
    head = message.payload[: -len(message.content) - 4]
    return message._replace(content=b"", payload=head + bytes(4))


def fields_of(content: bytes) -> dict[str, Any]:
    """Parse the content of a watermark or signal, which any role of the database may have written.

    The module json would accept unpaired surrogates, which can be neither stored nor sent to a server, and fails with a
    RecursionError on deeply nested content. orjson refuses both.

    :raises ValueError: the content is no JSON object.
    """
    fields = orjson.loads(content)
    if not isinstance(fields, dict):
        raise ValueError("the content is no JSON object")  # noqa: TRY004 - as for other content
    return fields
