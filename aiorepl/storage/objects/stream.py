"""Sends an object while it is being made: its parts go up in the background, so that little is left to send at its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aiorepl.storage.objects.client import PART_BYTES, ObjectClient

_CONCURRENT_PARTS: Final = 3


class ObjectStream:
    """A multipart upload. ``write`` waits while the maximum number of parts is being sent.

    After an error, call ``abandon``: the object has to be sent again from its beginning.

    :param name: the object's name.
    """

    def __init__(self, client: ObjectClient, name: str) -> None:
        self._client = client
        self._name = name
        self._file: Any = client.open_writer(name, PART_BYTES, _CONCURRENT_PARTS)

    def write(self, data: Iterable[bytes | bytearray]) -> None:
        """Send more of the object.

        :raises ObjectStoreError: a part could not be sent.
        """
        with self._client.translated():
            for each in data:
                self._file.write(each)

    def finish(self) -> None:
        """Complete the object, which is durable on return.

        :raises ObjectStoreError: the object may be complete or not.
        """
        with self._client.translated():
            self._file.close()

    def abandon(self) -> None:
        """Remove the parts that were sent, as far as possible."""
        self._file = None
        self._client.abort(self._name.__eq__)
