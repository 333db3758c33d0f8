"""Makes ``format("aiorepl")`` known to every Spark session: Spark imports the packages whose names begin with ``pyspark_``.

A session needs no registration then, and neither does one of Spark Connect, whose server has aiorepl installed.
"""

from __future__ import annotations

import contextlib

# Spark looks for data sources in all such packages at once. One that cannot be imported would hide the others.
with contextlib.suppress(ImportError):
    from aiorepl.spark.reading.source import AioreplDataSource as DefaultSource

__all__ = ["DefaultSource"]
