"""Each section of the runbook quotes the log lines that lead to it, as the code writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

# How a text is filled in: by %, or by the fields of an f-string, which ``texts`` replaces itself.
FIELD = re.compile(r"%(?:\.\d)?[sdfr]")
# Sections about work that is planned: no line of the log leads there.
PLANNED = {"Upgrade"}


def texts(root: Path) -> Iterator[str]:
    """The string literals of the package, with … for what is filled in."""
    for path in (root / "aiorepl").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield FIELD.sub("…", node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                yield "".join(map(str, parts))


def test_every_section_quotes_the_log(root):
    """Each section has a line ``**Log**``, and the code has each text that this line quotes."""
    page = (root / "docs/operations/runbook.md").read_text(encoding="utf-8")
    known = "\n".join(texts(root))
    for section in page.split("\n## ")[1:]:
        name, _, body = section.partition("\n")
        logs = re.findall(r"^\*\*Log\*\*(.*?)\n\n", body, re.MULTILINE | re.DOTALL)
        assert logs or name in PLANNED, name
        quoted = re.findall(r"`([^`]+)`", " ".join(logs))
        assert quoted or name in PLANNED, name
        for text in quoted:
            assert text.strip("… ") in known, f"{name}: {text}"
