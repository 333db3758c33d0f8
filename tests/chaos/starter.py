"""Starts a round's processes: the pipeline under test, and a second one on the same slot and journal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from broker import Broker
from bucket import FailingLayer
from cluster import Cluster
from ends import Ends
from processes import Process, Processes
from program import Program, Run
from receiver import Receiver
from stall_timeout import stall_timeout

UNAVAILABLE = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The errors of the suite's own connections to a server that faults strike."""
# Seconds until the server has released the slot.
_FREE = 120.0
# Seconds in which a second pipeline tries to get the slot.
_SLOT = 5.0


class Starter:
    """Starts the processes of a round; for the parameters, see ``Round``.

    :param target: returns the DSN of the target of a ``postgres`` sink.
    :param receiver: listens.
    :param brokers: by kind of sink.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        target: Callable[[], str],
        layer: FailingLayer | None,
        receiver: Receiver,
        brokers: Mapping[str, Broker],
        processes: Processes,
        folder: Path,
        ends: Ends,
        sabotage: str | None,
    ) -> None:
        self._program = program
        self._cluster = cluster
        self._target = target
        self._layer = layer
        self._receiver = receiver
        self._brokers = brokers
        self._processes = processes
        self._folder = folder
        self._ends = ends
        self._sabotage = sabotage
        self._slot = f"chaos_{program.seed}"

    async def run_second(self, seconds: float) -> bool:
        """Run a second pipeline on the same slot and journal, without sinks. One of the two must be refused.

        :param seconds: how long it may run once it has the slot.
        :returns: whether it got the slot.
        """
        folder = self._folder / "second"
        folder.mkdir(exist_ok=True)
        told = folder / "told.json"
        told.unlink(missing_ok=True)
        deadline, got = time.monotonic() + _SLOT, False
        while not got and time.monotonic() < deadline:
            process = self._start_second(folder)
            while process.returncode is None and time.monotonic() < deadline and not got:
                await asyncio.sleep(0.02)
                got = told.exists() and '"started": true' in told.read_text()
            if got:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await process.wait()
            process.kill()
            self._ends.note(await process.wait(), [], fenced=True, folder=folder)
        return got

    def _start_second(self, folder: Path) -> Process:
        plan = self._plan(Run(), {})
        program = plan["program"]
        program["sinks"] = {}
        for option in ("snapshot", "compact", "retention"):
            program["pipeline"].pop(option, None)
        (folder / "plan.json").write_text(json.dumps(plan | {"folder": str(folder)}))
        (folder / "stderr").touch()
        return self._processes.start(folder / "plan.json", folder / "stderr")

    async def start(self, run: Run, options: dict[str, Any] | None = None) -> Process:
        """Start a process once the slot is free.

        :param options: further options of ``Pipeline``.
        """
        await self.free()
        plan = self._folder / "plan.json"
        plan.write_text(json.dumps(self._plan(run, options or {})))
        return self._processes.start(plan, self._folder / "stderr")

    def _plan(self, run: Run, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "program": asdict(self._program),
            "dsn": self._cluster.proxy.dsn_for(self._dsn),
            "target": self._target(),
            "receiver": self._receiver.listener.port,
            "brokers": {
                name: self._brokers[options["type"]].options(name, options)
                for name, options in self._program.sinks.items()
                if options["type"] in self._brokers
            },
            "slot": self._slot,
            "folder": str(self._folder),
            "journal": str(self._folder / "journal"),
            "fired": str(self._folder / "fired"),
            "early": str(self._folder / "early"),
            "arms": run.arms,
            "options": options,
            "limits": self._program.limits if run in self._program.runs else {},
            "sabotage": self._sabotage,
            "store": None if self._layer is None else _configured(self._layer),
        }

    @property
    def _dsn(self) -> str:
        dsn = self._cluster.dsn_for(self._slot)
        return _with_role(dsn, self._slot) if self._program.role else dsn

    async def free(self) -> None:
        """Wait until the server answers and has released the slot."""
        async with stall_timeout(_FREE):
            while True:
                with contextlib.suppress(*UNAVAILABLE):
                    connection = await asyncpg.connect(self._cluster.dsn_for())
                    try:
                        query = "SELECT count(*) FROM pg_replication_slots WHERE database = $1 AND active"
                        if not await connection.fetchval(query, self._slot):
                            return
                    finally:
                        connection.terminate()
                await asyncio.sleep(0.02)


def _with_role(dsn: str, role: str) -> str:
    """Return the DSN for a role whose password is its name."""
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{role}:{role}@{parts.hostname}:{parts.port}").geturl()


def _configured(layer: FailingLayer) -> dict[str, Any]:
    """Return the locations of the journal for the process under test: with faults, and without."""
    locations = {"faulty": layer.location(), "direct": layer.location(direct=True)}
    return {name: {"url": each.url, "config": dict(each.config)} for name, each in locations.items()}
