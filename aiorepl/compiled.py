"""Which form of the hot modules is imported: compiled, if that was made of exactly these sources, or plain Python.

The hot path is Python that also compiles. Where there is a C compiler, an installation makes extension modules of
``MODULES`` and puts them into ``_compiled``, where the packages they belong to look first. Types for C stand beside each
module in a ``.pxd`` file. In an editable install a digest of the sources stands beside the extension modules. After an edit
of a source the digest differs, and plain Python runs until ``make compiled``. A wheel's sources do not change, so a wheel
has a fixed word instead of a digest, and an import hashes nothing.

``AIOREPL_PURE_PYTHON=1`` chooses plain Python, ``AIOREPL_PURE_PYTHON=0`` refuses it.

Imports nothing of the project: the build reads it too.
"""

from __future__ import annotations

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

MODULES: Final = (
    "wire.frames",
    "pgoutput.tuples",
    "pgoutput.rows",
    "pgoutput.decoder",
    "values.styles",
    "values.forms",
    "values.floats",
    "values.numbers",
    "values.datetimes",
    "values.intervals",
    "values.identifiers",
    "values.network",
    "values.geometric",
    "values.strings",
    "values.textsearch",
    "values.json",
    "values.composites",
    "values.array_text",
    "values.arrays",
    "values.ranges",
    "transactions.transaction",
    "transactions.rows",
    "transactions.changes",
    "transactions.slices",
    "transactions.spooled_changes",
    "transactions.pending",
    "transactions.assembler",
    "formats.native_rows",
    "journal.segment_builder",
)
VOCABULARY: Final = ("byteops", "values/calendar", "values/delimiters", "values/objects")
"""Steps that compiled modules take as inline C, from a ``.pxd`` file that stands in for the module."""
WITHOUT_CYCLES: Final = (
    "wire.frames",
    "pgoutput.tuples",
    "pgoutput.rows",
    "transactions.rows",
    "transactions.changes",
)
"""Those of whose objects there is one or more a row. They hold bytes and what they belong to, which never leads back to
them, so they are kept from the garbage collector, which else takes a fifth of the time.
"""

PACKAGE: Final = Path(__file__).parent
FOLDER: Final = PACKAGE / "_compiled"
SUFFIX: Final = EXTENSION_SUFFIXES[0]
"""What this interpreter's extension modules end in."""
DIGEST: Final = f"digest{SUFFIX}.txt"
"""The file that tells which sources the extension modules were made of."""
WHEEL: Final = "wheel"
"""The content of ``DIGEST`` in a wheel."""


def digest(package: Path) -> str:
    """What tells these sources from any others. All the types that C is told, because modules share them."""
    names = [f"{module.replace('.', '/')}{kind}" for module in MODULES for kind in (".py", ".pxd")]
    total = hashlib.sha256()
    for name in (*names, *(f"{module}{kind}" for module in VOCABULARY for kind in (".py", ".pxd"))):
        # As text: a checkout may have line ends of its own.
        total.update((package / name).read_text(encoding="utf-8").encode())
    return total.hexdigest()


def is_fresh() -> bool:
    """Whether there are extension modules, made from exactly these sources."""
    try:
        made_of = (FOLDER / DIGEST).read_text(encoding="ascii")
    except OSError:
        return False
    return made_of == WHEEL or made_of == digest(PACKAGE)


_WISH: Final = os.environ.get("AIOREPL_PURE_PYTHON", "")
ACTIVE: Final = _WISH in ("", "0") and is_fresh()
"""Whether the compiled form is in use."""


def path_of(package: str, own: list[str]) -> list[str]:
    """Where ``package`` shall look for its modules.

    :raises ImportError: when plain Python is refused, and there is nothing else.
    """
    if _WISH == "0" and not ACTIVE:
        raise ImportError(
            "AIOREPL_PURE_PYTHON=0, but aiorepl was not compiled, or its sources were edited since: make compiled"
        )
    return [str(FOLDER / package.partition(".")[2]), *own] if ACTIVE else own
