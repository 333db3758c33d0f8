"""The test kit: what aiorepl's own tests use, for whoever tests a consumer or writes a sink.

``EmbeddedServer`` is a real PostgreSQL in a temporary folder; ``messages`` builds every pgoutput message.
"""

from __future__ import annotations

from aiorepl.testing.server import EmbeddedServer

__all__ = ["EmbeddedServer"]
