"""The test kit, for users who test a consumer or write a sink; aiorepl's own tests use it too.

- ``MemorySource`` runs pipelines and consumers without a server, on a ``Stream`` of transactions that a test commits;
  ``messages`` builds them.
- ``server.EmbeddedServer`` is a real PostgreSQL in a temporary folder; ``ScriptedWalsender`` sends what a script says.
- ``CuttingProxy`` cuts, stalls and refuses connections; ``LossyProxy`` loses a server's answers.
- ``MemorySink`` keeps what it receives; ``FaultySink`` fails as scripted (``faults``).
- ``conformance`` has the test classes that certify a sink.
"""

from __future__ import annotations

from aiorepl.testing.faults import FaultySink, MemorySink
from aiorepl.testing.lossy import LossyProxy
from aiorepl.testing.memory import MemorySource
from aiorepl.testing.proxy import CuttingProxy
from aiorepl.testing.server import EmbeddedServer
from aiorepl.testing.stream import Stream
from aiorepl.testing.walsender import ScriptedWalsender

__all__ = [
    "CuttingProxy",
    "EmbeddedServer",
    "FaultySink",
    "LossyProxy",
    "MemorySink",
    "MemorySource",
    "ScriptedWalsender",
    "Stream",
]
