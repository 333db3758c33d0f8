"""The documents' Python, and the programs in examples, pass ``mypy --strict``."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

HERE = Path(__file__).parent


def module(text: str, names: str) -> str:
    """Return a block as a module: code that awaits outside of a function becomes the body of one."""
    given = f"from given import {names}\n" if names else ""
    try:
        compile(text, "block", "exec", dont_inherit=True)
    except SyntaxError:
        compile(text, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return f"{given}\n\nasync def page() -> None:\n{indent(text, '    ')}"
    return given + text


@pytest.mark.by_day
def test_mypy(every_block, root, tmp_path):
    """One run for all of them, and for user code with mistakes in it, each of which is reported."""
    folder = tmp_path / "blocks"
    folder.mkdir()
    shutil.copy(HERE / "given.py", folder)
    chained: dict[Path, tuple[str, set[str]]] = {}
    # The Spark programs use deltalake and matplotlib, whose annotations are incomplete.
    programs = [path for path in (root / "examples").glob("*.py") if not path.name.startswith("spark_")]
    files = {root / "tests/typing_example.py", *programs}
    path = folder
    for block in every_block:
        if block.language != "python" or ("shown:" in block.rules and "needs" not in block.rules):
            continue
        if "quoted" in block.rules:
            files.add(root / block.rules["quoted"])
            continue
        if "continues" not in block.rules:
            path = folder / f"{re.sub(r'[^A-Za-z0-9]', '_', block.page)}_line_{block.line}.py"
        text, names = chained.get(path, ("", set()))
        given = f"{block.rules.get('given', '')},{block.rules.get('needs', '')}"
        names |= {name.strip() for name in given.split(",") if name.strip()}
        chained[path] = (text + block.text, names)
    for path, (text, names) in chained.items():
        path.write_text(module(text, ", ".join(sorted(names))), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-warn-unreachable",
        *map(str, sorted(files)),
        *map(str, chained),
    ]

    done = subprocess.run(
        command,
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
