"""Writes shell scripts that replace programs, because no setting changes how Spark starts these programs."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


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
