"""The test kit: what aiorepl's own tests use, for whoever tests a consumer or writes a sink.

``MemorySource`` runs pipelines and consumers without a server, on a ``Stream`` of what a test writes down; ``messages``
has what tables are made of. ``EmbeddedServer`` is a real PostgreSQL in a temporary folder, ``ScriptedWalsender`` a false
one that says what it is told to; ``CuttingProxy`` stands between and cuts, ``LossyProxy`` loses answers. ``MemorySink`` remembers, ``FaultySink`` fails
by script (``faults`` has the faults). ``conformance`` is a class of tests that certifies a sink.
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
