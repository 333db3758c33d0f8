"""A process that delivers with a mask until the end of WAL, and kills itself by SIGKILL while the selection's memory is written.

python selection_process.py DSN SLOT FOLDER KIND STEP NUMBER

:param KIND: ``journal`` or ``state_dir``, the folder of the memory; ``journal_selection``: the mask is the journal's, and the sink has none.
:param STEP: of the ``NUMBER``-th write of the memory; ``never``: it ends in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from aiorepl import Delivery, Pipeline, Selection, Source
from aiorepl.storage.local import LocalStore
from aiorepl_sinks.jsonl import JsonLinesSink


def main(dsn: str, slot: str, folder: str, kind: str, step: str, number: str) -> None:
    """Deliver, or be killed."""
    reached: list[str] = []

    def kill(store: LocalStore, at: str, name: str) -> None:
        if at == step and "selections.json" in name:
            reached.append(name)
            if len(reached) == int(number):
                os.kill(os.getpid(), signal.SIGKILL)

    LocalStore.reached = kill  # type: ignore[method-assign]
    selection = Selection(mask=("*.*.email",), secret="s")
    journals = kind == "journal_selection"
    sinks = {"sink": Delivery(JsonLinesSink(f"{folder}/out"), selection=None if journals else selection)}
    source = Source(dsn, slot=slot, publication="p", create_slot=True)
    kept = {"journal" if journals else kind: f"{folder}/kept"} | ({kind: selection} if journals else {})
    asyncio.run(Pipeline(source, sinks, until="now", **kept).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
