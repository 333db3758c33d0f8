"""The controls of a running pipeline: SIGHUP reads its file again, and the status page takes requests that change it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiorepl.cli.pipeline_file import PipelineFile, load
from aiorepl.errors import AioreplError, ConfigurationError
from aiorepl.loggers import logger

if TYPE_CHECKING:
    from aiorepl.pipeline.running_sinks import SinkChanges

_log = logger("aiorepl.run")


class Controls:
    """Changes the pipeline of a loaded file. One change runs at a time.

    :param path: the file, which ``reload`` reads again.
    """

    def __init__(self, path: Path, loaded: PipelineFile) -> None:
        self._path = path
        self._loaded = loaded
        self._pipeline = loaded.pipeline
        self._lock = asyncio.Lock()

    @property
    def actions(self) -> dict[str, Callable[[str], Awaitable[dict[str, Any]]]]:
        """The requests over the status page, by path."""

        async def reload(_: str) -> dict[str, Any]:
            return asdict(await self.reload())

        async def pause(name: str) -> dict[str, Any]:
            await self.pause(name)
            return {"state": "paused"}

        async def resume(name: str) -> dict[str, Any]:
            await self.resume(name)
            return {"state": "running"}

        async def replay(name: str) -> dict[str, Any]:
            return {"delivered": await self.replay(name)}

        async def resnapshot(name: str) -> dict[str, Any]:
            await self.resnapshot(name)
            return {"state": "queued"}

        return {
            "/reload": reload,
            "/sinks/{name:path}/pause": pause,
            "/sinks/{name:path}/resume": resume,
            "/sinks/{name:path}/replay": replay,
            "/tables/{name:path}/resnapshot": resnapshot,
        }

    async def reload(self) -> SinkChanges:
        """Read the file again, and change the sinks accordingly. A sink that has failed starts again, even if its options are the same.

        :raises InvalidFile: the file has errors; nothing is changed.
        :raises ConfigurationError: an option differs that only a restart can change, or a check fails; nothing is changed.
        :raises AioreplError: the pipeline has ended, or ends.
        """
        from aiorepl.pipeline.running_sinks import NOTHING

        async with self._lock:
            before, found = self._loaded, await asyncio.to_thread(load, self._path)
            settings = before.settings.keys() | found.settings.keys()
            if altered := sorted(
                key for key in settings if before.settings.get(key) != found.settings.get(key)
            ):
                raise ConfigurationError(
                    f"{self._path}: only [[sinks]] can change while the pipeline runs: restart it to change {', '.join(altered)}"
                )
            sinks = self._pipeline.statistics().sinks
            deliveries = {
                name: before.deliveries[name]
                if before.written.get(name) == found.written[name]
                and not (name in sinks and sinks[name].failed)
                else delivery
                for name, delivery in found.deliveries.items()
            }
            names = before.deliveries.keys() | deliveries.keys()
            differ = sorted(name for name in names if before.deliveries.get(name) is not deliveries.get(name))
            if differ and before.journal is None:
                raise ConfigurationError(
                    f"{self._path}: without a [journal], sinks cannot change while the pipeline runs: restart it to change {', '.join(differ)}"
                )
            changes = await self._pipeline.reload(deliveries) if differ else NOTHING
            self._loaded = replace(found, pipeline=self._pipeline, deliveries=deliveries)
            return changes

    async def hang_up(self) -> None:
        """Reload after SIGHUP, and log the result."""
        try:
            changes = await self.reload()
        except AioreplError as error:
            for line in str(error).splitlines():
                _log.error("nothing is changed: %s", line)
        else:
            _log.info("%s was read again: %s", self._path, changes)

    async def pause(self, name: str) -> None:
        """Pause a sink; see ``Pipeline.pause``."""
        async with self._lock:
            await self._pipeline.pause(name)

    async def resume(self, name: str) -> None:
        """Continue a sink that is paused, or that has failed, with the options of the last reload."""
        async with self._lock:
            await self._resume(name)

    async def replay(self, name: str) -> int:
        """Pause a sink, write its dead letters to it again, and resume it unless it was paused before. Return the number of letters.

        :raises ConfigurationError: there is no such sink, or it has no folder of dead letters.
        :raises SinkError: a letter was rejected again; it and all later ones are kept.
        """
        from aiorepl.delivery.redelivery import redeliver

        async with self._lock:
            letters, delivery = self._loaded.dead_letters(name), self._loaded.renewed(name)
            paused = self._pipeline.statistics().sinks[name].paused
            await self._pipeline.pause(name)
            try:
                return await redeliver(name, delivery, letters)
            finally:
                if not paused:
                    await self._resume_after_replay(name)

    async def resnapshot(self, table: str) -> None:
        """Queue a table, ``schema.table``, to be read again while the stream runs.

        :raises ConfigurationError: the table cannot be read.
        """
        self._pipeline.require_snapshots()
        await self._pipeline.snapshots.add(table)

    async def _resume_after_replay(self, name: str) -> None:
        try:
            await self._resume(name)
        except AioreplError as error:
            raise AioreplError(f"{error}; sink {name} stays paused: resume it") from error

    async def _resume(self, name: str) -> None:
        delivery = self._loaded.renewed(name)
        await self._pipeline.resume(name, delivery)
        self._loaded = replace(self._loaded, deliveries={**self._loaded.deliveries, name: delivery})
