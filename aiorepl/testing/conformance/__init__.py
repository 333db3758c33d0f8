"""Tests that certify a sink against the contract of ``aiorepl.sink``. Derive a class from one of these, and run pytest.

::

    class TestMySink(SinkConformance):
        order = "key"                                     # what the sink guarantees; see the attributes

        @pytest.fixture(autouse=True)
        def target(self, tmp_path):                       # a new target for each test
            self.folder = tmp_path

        def make_sink(self):
            return MySink(self.folder)                    # a new sink over the same target, as after a restart

        def read(self):                                   # what a consumer of the target sees; may be async
            return native_events(self.folder.joinpath("events").read_bytes().splitlines())

``SinkConformance`` is for targets that contain events, ``MirrorConformance`` for targets that contain the rows of tables. Both
test batches of every size, slices of large transactions, crashes between write and flush, replays, cancellation at every
await, and rows of every kind, name and type. With ``poison``, ``outage`` and ``lost_answer`` they also test rejected rows, a
target that is unavailable, and answers that get lost. A failure says what the sink did and which rule of the contract it broke.

The kit runs each simulated process in a new event loop. So fixtures of the test class must not be ``async``, and ``make_sink``
and ``read`` must not keep a client from one call to the next.
"""

from __future__ import annotations

try:
    import pytest  # noqa: F401 - the modules below need it
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "aiorepl.testing.conformance needs pytest: pip install 'aiorepl[testing]'", name="pytest"
    ) from None

from aiorepl.testing.conformance.event import Event, native_events
from aiorepl.testing.conformance.formats import FormatConformance
from aiorepl.testing.conformance.log import SinkConformance
from aiorepl.testing.conformance.mirror import MirrorConformance
from aiorepl.testing.conformance.running import ContractBroken
from aiorepl.testing.conformance.scenario import (
    FULL,
    ITEMS,
    KEYLESS,
    ODD,
    PAIRS,
    TABLES,
    TYPES,
    WIDE,
    SampleTable,
)

__all__ = [  # noqa: RUF022 - by theme
    "SinkConformance",
    "Event",
    "native_events",
    "MirrorConformance",
    "FormatConformance",
    "SampleTable",
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
