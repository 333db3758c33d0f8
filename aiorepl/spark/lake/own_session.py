"""Lends Spark sessions whose settings no other thread sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

_LOCK: Final = Lock()
_FREE: Final[WeakKeyDictionary[Any, list[SparkSession]]] = WeakKeyDictionary()


@contextmanager
def own_session(spark: SparkSession) -> Iterator[SparkSession]:
    """Lend a session with the settings that ``spark`` had when it was made, until the context ends.

    Delta reads the number of a batch from settings of the session, and tables are written concurrently.
    """
    with _LOCK:
        free = _FREE.setdefault(spark, [])
        session = free.pop() if free else None
    if session is None:
        session = _copy(spark)
    try:
        yield session
    finally:
        free.append(session)


def _copy(spark: Any) -> SparkSession:
    if hasattr(spark, "cloneSession"):
        # Spark Connect.
        copy: SparkSession = spark.cloneSession()
        return copy
    copy = spark.newSession()
    present = copy.conf.getAll
    for name, value in spark.conf.getAll.items():
        if present.get(name) != value:
            copy.conf.set(name, value)
    return copy
