"""Proof that a consumer keeps its promises while things break: writers with known histories, and a verifier.

``Workload`` writes to a database and knows what it wrote. Whoever runs a consumer and breaks things puts down what the consumer
made durable, and when it was restarted, as a log. ``verify`` compares both. ``docs/faults.md`` has the method.
"""

from __future__ import annotations

from aiorepl.testing.verify.history import History, Operation, Tables, Transaction
from aiorepl.testing.verify.log import Confirmed, Crashed, Delivered, Entry, Restarted, of_native
from aiorepl.testing.verify.promise import Promise, Verdict
from aiorepl.testing.verify.verifier import verify
from aiorepl.testing.verify.workload import Workload
from aiorepl.testing.verify.writer import Mixture

__all__ = [
    "Confirmed",
    "Crashed",
    "Delivered",
    "Entry",
    "History",
    "Mixture",
    "Operation",
    "Promise",
    "Restarted",
    "Tables",
    "Transaction",
    "Verdict",
    "Workload",
    "of_native",
    "verify",
]
