"""Changes the sinks of a running pipeline that has a journal.

Each change is checked as a whole, as at a start, before the first sink is stopped. Then each changed sink is stopped between two
transactions and started again at its cursor. The other sinks continue, and the slot waits only for the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiorepl.cancellation import uninterrupted
from aiorepl.delivery.config import ResolvedDelivery, SinkSpec, named, require_new, resolve
from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.loggers import logger
from aiorepl.pipeline.journaled import JournaledFanOut
from aiorepl.pipeline.options import PipelineOptions
from aiorepl.pipeline.publication_watch import PublicationWatch
from aiorepl.pipeline.selection_state import SelectionState
from aiorepl.source.capture import Capture
from aiorepl.source.catalog.tables import TableCatalog

_log = logger("aiorepl.pipeline")


@dataclass(frozen=True, slots=True)
class SinkChanges:
    """The names of the sinks that ``Pipeline.reload`` has changed.

    :param added: sinks that the pipeline did not have.
    :param altered: sinks that were replaced.
    :param removed: sinks that the pipeline no longer has.
    """

    added: tuple[str, ...]
    altered: tuple[str, ...]
    removed: tuple[str, ...]

    def __str__(self) -> str:
        parts = (f"{kind} {', '.join(names)}" for kind, names in self._kinds() if names)
        return "; ".join(parts) or "no changes"

    def _kinds(self) -> list[tuple[str, tuple[str, ...]]]:
        return [("added", self.added), ("altered", self.altered), ("removed", self.removed)]


NOTHING: Final = SinkChanges((), (), ())


class RunningSinks:
    """The sinks of a running pipeline with a journal. One change runs at a time; a change that has begun is completed.

    :param sinks: the sinks as the user gave them.
    :param record: called with all deliveries of a change before it is made, to record which sinks receive rows from then on.
    """

    def __init__(
        self,
        options: PipelineOptions,
        sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec],
        deliveries: Mapping[str, ResolvedDelivery],
        fan_out: JournaledFanOut,
        capture: Capture,
        selections: SelectionState | None,
        watch: PublicationWatch | None,
        record: Callable[[Mapping[str, ResolvedDelivery]], Awaitable[None]],
    ) -> None:
        self._options = options
        self._specs = named(sinks)
        self._deliveries = dict(deliveries)
        self._fan_out = fan_out
        self._capture = capture
        self._selections = selections
        self._watch = watch
        self._record = record
        self._timeout = options.shutdown_timeout
        self._paused: set[str] = set()
        self._lock = asyncio.Lock()

    async def reload(self, sinks: Sequence[SinkSpec] | Mapping[str, SinkSpec]) -> SinkChanges:
        """See ``Pipeline.reload``."""
        async with self._lock:
            specs, before = named(sinks), self._specs
            changes = SinkChanges(
                tuple(name for name in specs if name not in before),
                tuple(name for name in specs if name in before and specs[name] is not before[name]),
                tuple(name for name in before if name not in specs),
            )
            if changes.added or changes.altered or changes.removed:
                await self._change(specs, changes)
                _log.info("sinks were changed while the pipeline runs: %s", changes)
            return changes

    async def pause(self, name: str) -> None:
        """See ``Pipeline.pause``."""
        async with self._lock:
            self._require(name)
            if name not in self._paused:
                self._require_running()
                self._paused.add(name)
                await uninterrupted(self._pause(name))

    async def resume(self, name: str, sink: SinkSpec) -> None:
        """See ``Pipeline.resume``."""
        async with self._lock:
            self._require(name)
            if name not in self._paused and not self._fan_out.failed(name):
                raise ConfigurationError(f"sink {name} is neither paused nor stopped by an error")
            await self._change({**self._specs, name: sink}, SinkChanges((), (name,), ()), resumed=name)
            _log.info("sink %s continues", name)

    async def _pause(self, name: str) -> None:
        await self._fan_out.stop_sink(name, self._timeout)
        self._fan_out.statistics[name].paused = True
        _log.warning("sink %s is paused, and the journal keeps the changes for it until it is resumed", name)

    def _require(self, name: str) -> None:
        if name not in self._specs:
            raise ConfigurationError(f"there is no sink {name!r}; the sinks are {', '.join(self._specs)}")

    def _require_running(self) -> None:
        if not self._fan_out.running:
            raise AioreplError("the pipeline is stopping, so its sinks are not changed")

    async def _change(
        self, specs: dict[str, SinkSpec], changes: SinkChanges, *, resumed: str | None = None
    ) -> None:
        """Check the sinks, and then replace them. If the check fails or is cancelled, nothing is changed.

        :param resumed: the sink that is no longer paused.
        """
        new = {name: specs[name] for name in (*changes.added, *changes.altered)}
        require_new(new.values(), self._specs.values())
        resolved = resolve(specs, self._options.batches, self._options.retry)
        deliveries = {name: resolved[name] if name in new else self._deliveries[name] for name in specs}
        self._options.require_compatible(deliveries, resyncs=False)
        self._fan_out.require_names(deliveries)
        changed = {name: deliveries[name] for name in new}
        found = await self._checked(changed)
        await self._record(deliveries)
        self._require_running()
        self._paused.discard(resumed or "")
        await uninterrupted(self._replace(specs, deliveries, changes, found))

    async def _checked(self, changed: Mapping[str, ResolvedDelivery]) -> TableCatalog | None:
        """Check the selections against the tables as they are now; return the tables, or ``None`` if no selection needs them."""
        ruled = {name: each.selection for name, each in changed.items() if each.selection is not None}
        if self._selections is None or not any(each.rules for each in ruled.values()):
            return None
        position = self._capture.position
        found = TableCatalog(await self._options.source.published_tables())
        await self._selections.check(ruled, found, f"{position.system_identifier}/{position.database}")
        return found

    async def _replace(
        self,
        specs: dict[str, SinkSpec],
        deliveries: Mapping[str, ResolvedDelivery],
        changes: SinkChanges,
        found: TableCatalog | None,
    ) -> None:
        if self._watch is not None:
            self._watch.set_sinks(deliveries)
        tables = self._capture.tables
        if tables is not None and any(
            deliveries[name].needs_catalog for name in (*changes.added, *changes.altered)
        ):
            tables.wanted = True
        self._specs, self._deliveries = specs, dict(deliveries)
        # Stop all before the first one starts: under another name, a new sink may have the target of a former one.
        leaving = (*changes.removed, *changes.altered)
        await asyncio.gather(*(self._fan_out.discharge_sink(name, self._timeout) for name in leaving))
        for name in changes.removed:
            self._remove(name)
        await asyncio.gather(*(self._start(name, found) for name in (*changes.altered, *changes.added)))

    def _remove(self, name: str) -> None:
        self._paused.discard(name)
        self._fan_out.remove_sink(name)
        if self._selections is not None:
            self._selections.put(name, None, self._options.retry, None)
        _log.warning(
            "sink %s was removed, and its cursor still keeps the changes that it has not read: if the sink is gone for good, drop the cursor "
            "(aiorepl journal drop)",
            name,
        )

    async def _start(self, name: str, found: TableCatalog | None) -> None:
        fan_out, delivery = self._fan_out, self._deliveries[name]
        fan_out.put_sink(name, delivery)
        try:
            if self._selections is not None:
                remembered = self._selections.put(name, delivery.selection, delivery.retry, found)
                if found is not None and self._capture.tables is not None:
                    self._capture.tables.adopt(found, remembered)
        except ConfigurationError as error:
            # A column was renamed since the check. The sink stops, as it does when it receives the column's rows.
            fan_out.fail_sink(name, error)
            return
        if name not in self._paused:
            await fan_out.start_sink(name)
