"""Keeps garbage collections in Spark's Python workers short."""

from __future__ import annotations

import gc


def spare_modules() -> None:
    """Exclude the objects that exist now from garbage collections; call it at the start of a task or of planning.

    Spark's worker collects garbage after each task and each planning. Without this, each collection visits the objects of all
    modules: 0.06 s. The garbage of the previous task has just been collected, so this keeps none.
    """
    gc.freeze()
