"""Names in Spark's SQL and in the paths of its columns."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name between backticks. Spark needs them if the name has a dot or other special characters."""
    return "`" + name.replace("`", "``") + "`"
