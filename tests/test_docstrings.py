"""Docstrings and comments are set as paragraphs: no line breaks off where the next word would have had much room."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FULL, SHORT = 90, 60
# A line that begins a list, a parameter, a table or code is no part of a paragraph.
PARAGRAPH = re.compile(r"(?![-*|>:]|\d+\.)\S")


def texts(source: str) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line, and the lines, of each docstring and each block of comments."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            first = node.lineno
            yield first, [line.strip('"') for line in lines[first - 1 : node.end_lineno]]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
    ]
    for _, group in groupby(enumerate(comments), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in group]
        yield numbers[0], [lines[number - 1].replace("# ", "", 1) for number in numbers]


def scars(lines: list[str]) -> Iterator[int]:
    """The numbers of the lines, from 0, that are far shorter than the lines around them, within a paragraph."""
    for number, (before, line) in enumerate(pairwise(lines), 1):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        margins = [len(each) - len(each.lstrip()) for each in (line, after)]
        if (
            len(before) >= FULL
            and 0 < len(line.strip()) < SHORT
            and len(after) >= SHORT
            and margins[0] == margins[1]
            and PARAGRAPH.match(line.strip())
            and re.match(r"[a-z(]", after.strip())
            and (number == 1 or len(before) - len(before.lstrip()) == margins[0])
            and not lines[number - 1].rstrip().endswith("::")
        ):
            yield number


@pytest.mark.parametrize("package", ["aiorepl", "sinks/aiorepl_sinks", "pyspark_aiorepl"])
def test_no_scars_of_a_reflow(package):
    """No paragraph has a line that ends long before the margin, followed by the rest of its sentence."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for first, lines in texts(path.read_text(encoding="utf-8")):
            found += [f"{path.relative_to(ROOT)}:{first + number}" for number in scars(lines)]
    assert found == []


def test_a_scar_is_found():
    """A line that a reflow has left is found; a list, code, and the end of a paragraph are not."""
    full = "x" * FULL
    assert list(scars([full, "flushed ones. The", f"changes {full}"])) == [1]
    assert list(scars([full, "- an item", f"and {full}"])) == []
    assert list(scars([full, "the end.", "", full])) == []
    assert list(scars([full, "    code = 1", f"then {full}"])) == []
