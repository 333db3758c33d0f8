"""Temporary PostgreSQL servers: ``embedded`` is the public class, ``guardian`` the process that owns ``postgres``,
``installation`` finds the server's programs.
"""

from __future__ import annotations

from aiorepl.testing.server.embedded import LOCAL, EmbeddedServer

__all__ = ["LOCAL", "EmbeddedServer"]
