"""Runs Debezium Engine: ``Debezium.java`` with the jars of ``scripts/debezium.py``, if Java is installed.

The heap may grow to what Kafka Connect allows; of the collectors this one took the least CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.programs import ensure_java

HERE = Path(__file__).parent
FOLDER = Path(sys.prefix) / "debezium"
SOURCE = HERE / "Debezium.java"
OPTIONS = ("-Xms256m", "-Xmx2g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")


def ready() -> bool:
    """Download and compile it; if that fails, say why on standard error."""
    subprocess.run([sys.executable, str(HERE.parent / "scripts" / "debezium.py")], check=False)
    if not FOLDER.is_dir():
        return False
    try:
        java = ensure_java() / "bin" / "java"
    except ConfigurationError as reason:
        print(f"debezium: no Java to run it with: {reason}", file=sys.stderr)
        return False
    compiler = next(FOLDER.glob("ecj-*.jar"))
    done = subprocess.run(
        [str(java), "-jar", str(compiler), "-17", "-cp", _path(), "-d", str(FOLDER), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{SOURCE} does not compile with the jars in {FOLDER}:\n{done.stderr}")
    return True


def command(slot: str, rows: int, file: Path | None = None, **settings: str) -> list[str]:
    """Read this many records from the database of libpq's environment variables.

    :param file: where events are written, one in a line; ``None``: they are counted only.
    :param settings: of the connector, with underscores for dots. With any, a line has a record's topic, key and value.
    """
    java = str(ensure_java() / "bin" / "java")
    return [
        java,
        *OPTIONS,
        "-cp",
        _path(),
        "Debezium",
        slot,
        str(rows),
        *([] if file is None else [str(file)]),
        *(f"{name.replace('_', '.')}={value}" for name, value in settings.items()),
    ]


def _path() -> str:
    return os.pathsep.join(map(str, [FOLDER, *sorted(FOLDER.glob("*.jar"))]))
