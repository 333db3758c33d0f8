"""For processes that fork: their libraries start no threads.

A forked process has one thread, and a lock that another thread of its parent held stays locked for ever. A parent without other
threads has no such lock. Importing Arrow, deltalake, obstore and numpy starts threads of jemalloc and OpenBLAS unless the environment
says otherwise; their other threads start when they are used.
"""

from __future__ import annotations

import sys
from pathlib import Path

# For the process that forks; what it forks gets another environment, or has one thread as well.
ENVIRONMENT = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
    "_RJEM_MALLOC_CONF": "background_thread:false",
}


def check() -> None:
    """Check before a fork that this process has one thread, where the system tells (Linux).

    :raises RuntimeError: names the other threads.
    """
    if sys.platform != "linux":
        return
    names = [Path(thread, "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()]
    if len(names) > 1:
        raise RuntimeError(f"a process that forks has threads: {', '.join(names)}")
