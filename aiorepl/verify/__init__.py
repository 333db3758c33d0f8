"""Verifies a consumer's guarantees under faults: writers with known histories, and a verifier.

``Workload`` writes to a database and records its history. The test that runs the consumer and injects faults keeps a log: the
changes that the consumer made durable, and its restarts. ``verify`` compares the history with the log. ``docs/faults.md``
describes the method.
"""

from __future__ import annotations

from aiorepl.verify.history import (
    History,
    Operation,
    Tables,
    Transaction,
)
from aiorepl.verify.log import (
    Confirmed,
    Crashed,
    Delivered,
    Described,
    Entry,
    Restarted,
    of_native,
)
from aiorepl.verify.promise import Promise, Verdict
from aiorepl.verify.publication import Publication
from aiorepl.verify.verifier import verify
from aiorepl.verify.workload import Workload
from aiorepl.verify.writer import Mixture

__all__ = [
    "Confirmed",
    "Crashed",
    "Delivered",
    "Described",
    "Entry",
    "History",
    "Mixture",
    "Operation",
    "Promise",
    "Publication",
    "Restarted",
    "Tables",
    "Transaction",
    "Verdict",
    "Workload",
    "of_native",
    "verify",
]
