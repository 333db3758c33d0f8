"""An object store for journals: S3Proxy, and a layer in front of it that fails in many ways."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

from aiorepl.storage.objects.location import ObjectStore

sys.path.append(str(Path(__file__).parents[1]))
from object_stores import KEYS, Fault, FaultyLayer, serving

# Longer than the time-out of requests in the process under test.
_HANG = 1.5
_BUCKET = "chaos"
# The faults of a request, by weight. Without one, it is forwarded.
_FAULTS = {"": 150, "500": 6, "503": 6, "lost answer": 6, "slow": 4, "late answer": 4, "hang": 1}


class FailingLayer(FaultyLayer):
    """Forwards requests, and fails at random.

    :param name: the prefix of the journal.
    """

    def __init__(self, endpoint: str, name: str, seed: int) -> None:
        self.failing = True
        """Whether there are faults."""
        self.away = False
        """Whether every answer is 503."""
        self.struck: Counter[str] = Counter()
        # For the verifier. It does not ask the store directly, because both layers must share the locks in ``exclusive``.
        self._direct = FaultyLayer(endpoint)
        self._url = f"s3://{_BUCKET}/{name}"
        self._chance = random.Random(seed)
        super().__init__(endpoint)
        self.exclusive = self._direct.exclusive

    def location(self, *, direct: bool = False) -> ObjectStore:
        """Return the location of the journal.

        :param direct: without faults.
        """
        endpoint = self._direct.endpoint if direct else self.endpoint
        return ObjectStore(self._url, {"endpoint": endpoint, **KEYS})

    def stop(self) -> None:
        """Stop serving requests."""
        super().stop()
        self._direct.stop()

    def fault(self, method: str, path: str) -> Fault | None:
        """Draw the fault of a request."""
        if self.away:
            return Fault(method, "", status=503)
        drawn = self._chance.choices(list(_FAULTS), list(_FAULTS.values()))[0]
        if not drawn or not self.failing:
            return None
        self.struck[f"object store: {drawn}"] += 1
        if drawn in ("500", "503"):
            code = "InternalError" if drawn == "500" else "SlowDown"
            return Fault(method, "", status=int(drawn), code=code)
        seconds = _HANG if drawn == "hang" else self._chance.uniform(0, 0.3)
        if drawn == "late answer":
            # The answer has an earlier state of the store: a listing may be stale.
            return Fault(method, "", late=seconds)
        if drawn == "lost answer":
            return Fault(method, "", lost=True)
        return Fault(method, "", meanwhile=lambda: time.sleep(seconds))


def store() -> AbstractContextManager[str]:
    """Run the store, and yield its endpoint."""
    return serving("s3.py", _BUCKET)
