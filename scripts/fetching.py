"""What the programs that fetch servers for the tests have in common: where to, by npm, and why not."""

# ruff: noqa: INP001, S603 - for programs

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class CannotBeHad(Exception):
    """Why there will be no such server."""


def environment() -> Path:
    """Where all of it goes: the virtual environment that the program runs in; without one it ends."""
    if sys.prefix == sys.base_prefix:
        program = Path(sys.argv[0]).name
        sys.exit(
            f"{program}: run it with the virtual environment's python: .venv/bin/python scripts/{program}"
        )
    return Path(sys.prefix)


def run_npm(npm: str, *arguments: str, folder: Path, seconds: float) -> subprocess.CompletedProcess[bytes]:
    """Run it in ``folder``, outside of which it keeps nothing."""
    settings = {
        "npm_config_cache": str(folder / "cache"),
        "npm_config_logs_max": "0",
        "npm_config_update_notifier": "false",
        "npm_config_fetch_retries": "1",
        "npm_config_fetch_retry_mintimeout": "1000",
    }
    try:
        return subprocess.run(
            [npm, *arguments],
            cwd=folder,
            env={**os.environ, **settings},
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        asked = " ".join(word for word in arguments if not word.startswith("-"))
        raise CannotBeHad(f"npm {asked}: {type(error).__name__}") from None
