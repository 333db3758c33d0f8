"""Chooses the form of the hot modules that is imported: compiled, if it was made from exactly these sources, or plain Python.

The hot path is plain Python that also compiles. If there is a C compiler, an installation compiles ``MODULES`` into extension
modules in ``_compiled``, where their packages look first. A ``.pxd`` file beside each module has its types for C.

In an editable installation, a digest of the sources is stored with the extension modules. After an edit the digest differs, and
plain Python runs until ``make compiled``. A wheel's sources do not change, so a wheel has a constant instead of the digest,
and an import hashes nothing.

``AIOREPL_PURE_PYTHON=1`` selects plain Python; ``AIOREPL_PURE_PYTHON=0`` requires the compiled form.

Imports nothing of the project, because the build imports this module, too.
"""

from __future__ import annotations

import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

MODULES: Final = (
    "wire.frames",
    "wire.copy_frames",
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
    "transactions.row_counts",
    "transactions.spooled_changes",
    "transactions.pending",
    "transactions.assembler",
    "formats.native_rows",
    "formats.arrow.binary_columns",
    "formats.arrow.text_columns",
    "formats.arrow.row_collector",
    "formats.arrow.column_filler",
    "journal.segment_builder",
    "snapshot.copy_rows",
)
VOCABULARY: Final = ("byteops", "values/calendar", "values/delimiters", "values/objects")
"""Modules that compiled modules use as inline C, from the ``.pxd`` file of the same name."""
WITHOUT_CYCLES: Final = (
    "wire.frames",
    "pgoutput.tuples",
    "pgoutput.rows",
    "transactions.rows",
    "transactions.changes",
)
"""Modules with at least one object per row. Their objects cannot be part of a reference cycle, so the garbage collector does not
track them; otherwise it would take a fifth of the time.
"""

PACKAGE: Final = Path(__file__).parent
FOLDER: Final = PACKAGE / "_compiled"
SUFFIX: Final = EXTENSION_SUFFIXES[0]
"""The suffix of this interpreter's extension modules."""
DIGEST: Final = f"digest{SUFFIX}.txt"
"""The file with the digest of the sources that the extension modules were made from."""
WHEEL: Final = "wheel"
"""The content of ``DIGEST`` in a wheel."""


def digest(package: Path) -> str:
    """Return the digest of the sources of ``package``. One digest for all modules, because they share their types for C."""
    names = [f"{module.replace('.', '/')}{kind}" for module in MODULES for kind in (".py", ".pxd")]
    total = hashlib.sha256()
    for name in (*names, *(f"{module}{kind}" for module in VOCABULARY for kind in (".py", ".pxd"))):
        # Read as text, because a checkout may have other line ends.
        total.update((package / name).read_text(encoding="utf-8").encode())
    return total.hexdigest()


def is_fresh() -> bool:
    """Whether there are extension modules, made from exactly these sources."""
    try:
        compiled = (FOLDER / DIGEST).read_text(encoding="ascii")
    except OSError:
        return False
    return compiled == WHEEL or compiled == digest(PACKAGE)


_REQUESTED: Final = os.environ.get("AIOREPL_PURE_PYTHON", "")
ACTIVE: Final = _REQUESTED in ("", "0") and is_fresh()
"""Whether the compiled form is used."""


def path_of(package: str, own: list[str]) -> list[str]:
    """Return the folders where ``package`` looks for its modules.

    :param own: the package's ``__path__``.
    :raises ImportError: the compiled form is required but missing.
    """
    if _REQUESTED == "0" and not ACTIVE:
        raise ImportError(
            "AIOREPL_PURE_PYTHON=0 requires the compiled form, but aiorepl was not compiled, or was edited since: make compiled"
        )
    return [str(FOLDER.joinpath(*package.split(".")[1:])), *own] if ACTIVE else own
