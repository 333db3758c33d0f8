"""Names in Spark's SQL and in the paths of its columns."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Return a name between backticks, as Spark needs it if it has a dot or another special character."""
    return "`" + name.replace("`", "``") + "`"
