"""The test kit: what aiorepl's own tests use, for whoever tests a consumer or writes a sink.

``EmbeddedServer`` is a real PostgreSQL in a temporary folder, ``ScriptedWalsender`` a false one that says what it is
told to. ``CuttingProxy`` stands between and cuts. ``MemorySink`` remembers, ``FaultySink`` fails by script (``faults``
has the faults). ``messages`` builds every pgoutput message, ``stream`` whole transactions without a server.
"""

from __future__ import annotations

from aiorepl.testing.faults import FaultySink, MemorySink
from aiorepl.testing.proxy import CuttingProxy
from aiorepl.testing.server import EmbeddedServer
from aiorepl.testing.walsender import ScriptedWalsender

__all__ = ["CuttingProxy", "EmbeddedServer", "FaultySink", "MemorySink", "ScriptedWalsender"]
