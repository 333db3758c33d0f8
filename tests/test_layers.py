"""The house rules that an import can break: data flows down the list of folders, and imports only look up it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

import aiorepl
import aiorepl_sinks

PACKAGE = Path(aiorepl.__file__).parent
SINKS = Path(aiorepl_sinks.__file__).parent

# In the order in which data flows; those on one line know nothing of each other's insides but may meet.
ORDER = (
    {
        "cancellation",
        "lsn",
        "errors",
        "position",
        "epoch",
        "sizes",
        "byteops",
        "loggers",
        "compiled",
        "durable",
        "account",
        "histogram",
        "metrics",
        "lazy",
        "secret",
        "retry",
        "dsn",
        "credentials",
        "durations",
        "option_fields",
        "fitting",
        "checked",
        "suggestions",
        "plugins",
        "waits",
    },
    {"storage", "verify"},
    {"wire"},
    {"pgoutput"},
    {"table_name"},
    {"values"},
    {"transactions"},
    {"sink"},  # the contract; the journal's writer is a sink too
    {"journal"},
    {"snapshot"},
    {"formats"},
    {"history"},
    {"source"},
    {"transforms"},
    {"delivery", "router", "invalidations"},
    {"pipeline"},
    {"migration"},
    {"spark"},
    {"monitoring"},
)
LAYER = {name: number for number, names in enumerate(ORDER) for name in names}
# These stand beside the stages and may use any; so may the facade.
BESIDE = {"cli", "testing", "__init__", "__main__"}

PURE = (
    *("pgoutput/", "values/", "transactions/", "formats/", "wire/frames.py", "wire/commands.py"),
    *(
        "journal/segment_format.py",
        "storage/checked_json.py",
        "journal/metadata.py",
        "journal/index.py",
        "journal/chain.py",
        "journal/completeness.py",
        "snapshot/ledger/ledger.py",
        "snapshot/statistics.py",
    ),
    *(
        "journal/segment_builder.py",
        "source/ledger.py",
        "source/feedback/schedule.py",
        "delivery/batching.py",
    ),
    *("transforms/selection.py", "transforms/masking.py", "transforms/patterns.py"),
    *("transforms/methods.py", "transforms/encryption.py"),
    *("source/feedback/liveness.py", "source/catalog/tables.py", "source/catalog/attributes.py"),
    *("snapshot/chunks.py", "snapshot/chunk_query.py", "snapshot/copy_rows.py", "wire/copy_frames.py"),
    *("history/names.py", "history/manifest.py", "history/planning.py"),
    *("histogram.py", "metrics.py"),
    *(
        "monitoring/samples.py",
        "monitoring/status.py",
        "monitoring/mirror_status.py",
        "monitoring/progress.py",
        "monitoring/rates.py",
    ),
    *("source/continuity.py", "source/progress.py", "source/server/requirements.py", "pipeline/start.py"),
)
IMPURE_ALL_THE_SAME = {"transactions/spool.py"}
THE_OUTSIDE = {"asyncio", "socket", "select", "ssl", "threading", "time", "anyio", "asyncpg", "uvloop"}

# Heavy and optional: where each may be imported at all, also inside functions.
ONLY_IN = {
    "starlette": ("monitoring/",),
    "prometheus_client": ("monitoring/",),
    "opentelemetry": ("monitoring/",),
    "uvicorn": ("monitoring/",),
    "cryptography": ("transforms/encryption.py",),
    "pyspark": ("spark/", "testing/"),
    "pyarrow": ("spark/", "formats/arrow/", "history/", "testing/"),
    "deltalake": (
        "spark/",
        "testing/",
        "cli/demo/",
    ),  # the demo reads the mirror back by other means than Spark
}

CONTRACT = {
    *("aiorepl", "aiorepl.sink", "aiorepl.errors", "aiorepl.lsn", "aiorepl.position", "aiorepl.formats"),
    *("aiorepl.dsn", "aiorepl.credentials", "aiorepl.durations", "aiorepl.sizes", "aiorepl.checked"),
    "aiorepl.durable",
    "aiorepl.storage.objects.client",
    "aiorepl.storage.objects.location",
    "aiorepl.loggers",  # authors log names from outside as well
    "aiorepl.waits",
    "aiorepl.cancellation",  # clients that swallow cancellations: authors of other sinks meet them as well
}

# What formats read: a change, its columns and their types. All of these stages are pure.
READ_BY_FORMATS = ("aiorepl.epoch.", "aiorepl.pgoutput.", "aiorepl.transactions.", "aiorepl.values.")


def imported(source: str) -> Iterator[str]:
    """The dotted names that a module imports: at its top, inside functions, and for type checkers alone."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{name.name}" for name in names)
            case ast.ImportFrom():
                raise AssertionError(f"line {node.lineno}: a relative import")


def all_imports(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file of a package, relative and with slashes, with each name that it imports."""
    for path in sorted(folder.rglob("*.py")):
        for name in imported(path.read_text(encoding="utf-8")):
            yield path.relative_to(folder).as_posix(), name


def stage(file: str) -> str:
    """The folder, or the module at the top, that a file belongs to."""
    return PurePosixPath(file).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import a.b, c", ["a.b", "c"]),
        ("from a import b, c", ["a.b", "a.c"]),
        ("def f():\n    import a", ["a"]),
        ("if TYPE_CHECKING:\n    from a.b import C", ["a.b.C"]),
    ],
)
def test_every_kind_of_import_is_seen(source, names):
    """The rules below are worth what this finds."""
    assert names == list(imported(source))


def test_every_module_has_its_place():
    """A folder that is added says which stage it is."""
    found = {stage(file.relative_to(PACKAGE).as_posix()) for file in PACKAGE.rglob("*.py")}

    assert set() == found - LAYER.keys() - BESIDE


def test_imports_look_up_only():
    """A stage knows of those before it in the flow, never of those after it."""
    wrong = []
    for file, name in all_imports(PACKAGE):
        package, _, rest = name.partition(".")
        here, there = stage(file), rest.partition(".")[0]
        if package == "aiorepl" and here not in BESIDE and LAYER.get(there, len(ORDER)) > LAYER[here]:
            wrong.append(f"{file} imports {name}")

    assert [] == wrong


def test_decoding_and_bookkeeping_are_pure():
    """No loop, no socket, no clock: what a pure stage does depends on what it is given."""
    wrong = [
        f"{file} imports {name}"
        for file, name in all_imports(PACKAGE)
        if file.startswith(PURE) and file not in IMPURE_ALL_THE_SAME and name.split(".")[0] in THE_OUTSIDE
    ]

    assert [] == wrong


def test_heavy_libraries_stay_in_their_lane():
    """Libraries of an extra are imported by its own modules only."""
    wrong = [
        f"{file} imports {name}"
        for file, name in all_imports(PACKAGE)
        if not file.startswith(ONLY_IN.get(name.split(".")[0], ("",)))
    ]

    assert [] == wrong


def test_own_sinks_use_what_a_stranger_may():
    """The sinks that come along import the contract, the formats and their client library; the formats read changes too."""
    wrong = [
        f"{file} imports {name}"
        for file, name in all_imports(SINKS)
        if name.split(".")[0] == "aiorepl"
        and name not in CONTRACT
        and name.rpartition(".")[0] not in CONTRACT
        and not name.startswith("aiorepl.formats.")
        and not (file.startswith("formats/") and name.startswith(READ_BY_FORMATS))
    ]

    assert [] == wrong


def test_importing_the_package_is_cheap():
    """``import aiorepl`` loads no library that only a part of it needs."""
    program = "import sys, aiorepl; print(*sorted(name for name in sys.modules if '.' not in name))"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert "aiorepl" in said.split()
    assert set() == {"anyio", "asyncio", "asyncpg", "click", "deltalake", "pyarrow", "pyspark"} & set(
        said.split()
    )
