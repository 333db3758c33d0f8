"""Names of topics, and the choice of a partition. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import Final

from aiokafka.partitioner import DefaultPartitioner

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")
_NAME_LENGTH: Final = 249


@lru_cache(4096)
def topic_name(name: str) -> str:
    """Make a legal topic name. A name with illegal characters, or too long a name, is changed and gets a digest.

    So tables whose names differ only in an illegal character have different topics.
    """
    legal = _ILLEGAL.sub("_", name)[:_NAME_LENGTH]
    if legal == name and name not in ("", ".", ".."):
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{legal[: _NAME_LENGTH - 9]}-{digest}"


_partitioner: Final[Callable[[bytes, list[int], list[int]], int]] = DefaultPartitioner()


def partition_of(key: bytes, partitions: list[int]) -> int:
    """Choose the partition of a key, as Kafka's other clients do.

    :param partitions: the topic's partitions, in order.
    """
    return _partitioner(key, partitions, partitions)
