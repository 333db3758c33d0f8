"""Whether a sink keeps the contract of ``aiorepl.sink``: tests that its author runs, by deriving a class for pytest.

::

    class TestMySink(SinkConformance):
        order = "key"                                     # what the sink claims; see the attributes

        @pytest.fixture(autouse=True)
        def target(self, tmp_path):                       # a target of each test's own
            self.folder = tmp_path

        def make_sink(self):
            return MySink(self.folder)                    # a new one over the same target, as after a restart

        def read(self):                                   # what a consumer of the target sees now; may be async
            return native_events(self.folder.joinpath("events").read_bytes().splitlines())

``SinkConformance`` is for targets that show events, ``MirrorConformance`` for those that show the tables' rows. Both
run batches in all cuts, slices of large transactions, crashes between write and flush, replays, cancellation at every
await, rows of every kind and name and type; with ``poison``, ``outage`` and ``lost_answer`` also what the target refuses, a
target that is away, and one that does what it is asked but is not heard. A failure says what the sink did, and which sentence
of the contract it broke.

The kit makes an event loop of its own for each life of a process that it plays: fixtures that the test class uses are
not ``async``, and ``make_sink`` and ``read`` keep no client from one call to the next.
"""

from __future__ import annotations

from aiorepl.testing.conformance.event import Event, native_events
from aiorepl.testing.conformance.log import SinkConformance
from aiorepl.testing.conformance.mirror import MirrorConformance
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.testing.conformance.scenario import FULL, ITEMS, KEYLESS, ODD, PAIRS, TABLES, TYPES, WIDE, Table

__all__ = [  # noqa: RUF022 - by theme
    "SinkConformance",
    "Event",
    "native_events",
    "MirrorConformance",
    "Table",
    "TABLES",
    "ITEMS",
    "PAIRS",
    "FULL",
    "KEYLESS",
    "ODD",
    "WIDE",
    "TYPES",
    "ContractBroken",
]
