"""Finds the Python for Spark's worker processes."""

from __future__ import annotations

import os
import shlex
import sys
import sysconfig
from pathlib import Path
from typing import Final

import pyspark

from aiorepl.spark.session.wrappers import wrapper

# Spark puts archives with pyspark and py4j in front of PYTHONPATH. Modules in an archive have no bytecode: each new process would
# compile them, which takes three quarters of its start.
WRAPPER: Final = """\
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
    script = WRAPPER.format(python=shlex.quote(sys.executable))
    return str(wrapper("python", "python", script) / "python")
