"""Delta's jars for Spark: fetched into ``servers/delta`` of this virtual environment, for the tests of merges on executors.

.venv/bin/python scripts/delta.py          fetch them, unless they are there
"""

# ruff: noqa: INP001 - a program

from __future__ import annotations

from maven import put_in_place

# For the Spark that requirements.lock pins: Delta has jars for each minor version of Spark.
PINS = {
    (
        "io.delta",
        "delta-spark_4.2_2.13",
        "4.4.0",
    ): "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    (
        "io.delta",
        "delta-storage",
        "4.4.0",
    ): "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
}

if __name__ == "__main__":
    put_in_place("delta", PINS)
