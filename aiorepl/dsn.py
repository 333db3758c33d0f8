"""URLs of PostgreSQL servers. Pure."""

from __future__ import annotations

import re
from typing import Final

_DRIVER: Final = re.compile(r"^(postgres(?:ql)?)\+\w+://")


def without_driver(dsn: str) -> str:
    """Remove the driver that SQLAlchemy's URLs name, as in ``postgresql+asyncpg://``."""
    return _DRIVER.sub(r"\1://", dsn)
