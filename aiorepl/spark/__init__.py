"""The Spark lane: a pipeline's journal as DataFrames, and Delta mirrors kept from them.

    spark = aiorepl.spark.local_session()                       # or any session, and register(spark)
    orders = (spark.readStream.format("aiorepl").option("journal", url).option("table", "public.orders").load())
    aiorepl.spark.apply_changes(orders, target="/lake/orders", keys=["id"])

``source`` plans on the driver, ``walk``, ``typed``, ``generic`` and ``columns`` read on executors, ``mirror`` writes.
Spark never touches the slot: it reads what a pipeline has made durable. pyspark is imported here alone, and pyarrow and
deltalake, like it, only when something is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiorepl.spark.mirror import apply_changes
    from aiorepl.spark.session import local_session, register

_HOME_OF = {
    "apply_changes": "aiorepl.spark.mirror",
    "local_session": "aiorepl.spark.session",
    "register": "aiorepl.spark.session",
}

__all__ = ["apply_changes", "local_session", "register"]


def __getattr__(name: str) -> Any:
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'aiorepl.spark' has no attribute {name!r}") from None
    try:
        return getattr(import_module(home), name)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in ("pyspark", "pyarrow", "deltalake", "py4j"):
            raise
        raise ImportError(
            f"aiorepl.spark needs {package}: pip install 'aiorepl[spark]'", name=missing.name
        ) from missing
