"""URLs of PostgreSQL servers. Pure."""

from __future__ import annotations

import re
from typing import Final

_SCHEMES: Final = ("postgresql", "postgres")
_DRIVER: Final = re.compile(r"^(postgres(?:ql)?)\+\w+://")


def wrong_form(dsn: str | None) -> str:
    """Say what is wrong with a DSN that cannot be read, without quoting it: it may contain a password."""
    scheme, separator, _ = (dsn or "").partition("://")
    if dsn is not None and not separator:
        return "the DSN is not a URL" + (", but libpq's form of name=value" if "=" in dsn else "")
    if dsn is not None and scheme not in _SCHEMES:
        return "the DSN is not a URL of PostgreSQL"
    return "the DSN or the PG* environment is invalid"


def without_driver(dsn: str) -> str:
    """Remove the driver that SQLAlchemy's URLs name, as in ``postgresql+asyncpg://``."""
    return _DRIVER.sub(r"\1://", dsn)
