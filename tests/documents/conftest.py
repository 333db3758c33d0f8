"""Every block of every document, with its rule.

A block is fenced or indented. An HTML comment before it, which readers do not see, says how it is tested::

    <!-- test: given pipeline, source; runs -->

=====================  ==========================================================================================
``continues``          Python: uses the names of the block before it
``given a, b``         Python: uses these names, see ``given.py``
``on journal``         Python: the test's journal, or lake, replaces the path in the block
``needs a``            Python: the type checker knows these names; the test named by ``elsewhere`` has values
``file NAME``          is saved in the folder in which later blocks run
``quoted PATH``        is an exact quotation of this file, which has its own tests
``elsewhere PATH``     is executed by this test, which names the document
``run``                shell: executed, otherwise parsed; SQL: kept, otherwise rolled back; Python: its tests are run
``runs SQL``           Python, shell: runs until the transactions of SQL are confirmed, and is then stopped
``output``             the output of the command before, except for numbers, times and positions; JSON: events, laid out for readers
``then CODE``          Python: executed after the block, to use what the block defines
``program``            Python: executed as a program, in a process of its own
``mirror``             TOML: a file of ``aiorepl spark mirror``
``shown: REASON``      not executed, for this reason; and type-checked only with ``needs``
=====================  ==========================================================================================

Without a comment, Python is executed, TOML is loaded as a pipeline's file, SQL is executed and rolled back, JSON is parsed,
and commands are parsed by the command line itself. A page starts with a database that has the tables of ``given.py``, or with
an empty one: ``<!-- page: empty database -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from opentelemetry.metrics import get_meter

import aiorepl
from aiorepl.formats import named
from aiorepl.testing import MemorySink, Stream
from aiorepl.testing.messages import column

ROOT = Path(__file__).parents[2]
COMMANDS = ("aiorepl ", "pip ", "make ", "python ", ".venv/bin/python ", "psql ", "export ")
# Their names are in the table above.
RULES = tuple(re.findall(r"^``(\w+:?)", __doc__, re.MULTILINE))


@dataclass(frozen=True)
class Block:
    """A block of a document.

    :param line: its number in the document, from 1.
    :param language: of a fence; ``sh`` for indented commands, ``text`` for what else is indented.
    :param rules: what the comment before it says, each word with its arguments.
    """

    page: str
    line: int
    language: str
    text: str
    rules: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def rules(comment: str) -> dict[str, str]:
    """The words of a comment with their arguments."""
    parts = re.split(rf";\s*(?=(?:{'|'.join(RULES)})(?![a-z]))", comment)
    words = (rule.strip().partition(" ") for rule in parts)
    return {word: argument.strip() for word, _, argument in words}


def extract(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a document in order."""
    lines, number, said, listed = text.splitlines(), 0, "", False
    while number < len(lines):
        line, first = lines[number], number
        if fence := re.match(r"( *)(`{3,}|~{3,})([\w-]*)", line):
            end = next(
                (at for at in range(first + 1, len(lines)) if lines[at].strip() == fence[2]), len(lines)
            )
            body = "\n".join(lines[first + 1 : end]) + "\n"
            yield Block(page, first + 1, fence[3] or "text", dedent(body), rules(said) if said else {})
            number, said = end + 1, ""
        elif line.startswith("    ") and not listed:
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            body = dedent("\n".join(lines[first:number])).strip("\n") + "\n"
            language = "sh" if body.startswith(COMMANDS) else "text"
            yield Block(page, first + 1, language, body, rules(said) if said else {})
            said = ""
        else:
            if comment := re.match(r"\s*<!-- test: (.*?) -->", line):
                said = comment[1]
            elif line.strip():
                said = ""
                # Within an item of a list, an indented line is its text.
                listed = bool(re.match(r"([-*]|\d+\.) ", line)) or (listed and line.startswith(" "))
            number += 1


def documents() -> dict[str, list[Block]]:
    """The blocks of all documents, by path."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/README.md", ROOT / "sinks/README.md"]
    found += [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
    pages = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}
    return {page: list(extract(page, text)) for page, text in pages.items()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``blocks``: those of one page, for each page that has blocks; ``block``: each of them."""
    pages = documents()
    if "blocks" in metafunc.fixturenames:
        having = {page: blocks for page, blocks in pages.items() if blocks}
        metafunc.parametrize("blocks", having.values(), ids=having)


STREAM = Stream()
STREAM.transaction(STREAM.table("orders", column("id", 23, key=True), column("note")).insert("1", "first"))
BATCH = aiorepl.Batch(STREAM.slices())


async def ignore(*_: object) -> None:
    """A stand-in for a name that the document uses. It does nothing."""


def value_of(name: str, page: Any) -> Any:
    """The value of a name that the document uses."""
    source = aiorepl.Source(page.dsn, slot=page.slot, publication="shop", create_slot=True)
    match name:
        case "dsn":
            return page.dsn
        case "source":
            return source
        case "sink":
            return MemorySink()
        case "sinks":
            return [MemorySink()]
        case "pipeline":
            return aiorepl.Pipeline(source, [MemorySink()], journal=page.folder / page.slot)
        case "batch":
            return BATCH
        case "context":
            return aiorepl.SinkContext("sink", STREAM.position)
        case "form":
            return named("native")
        case "routing":
            return aiorepl.Routing("{schema}.{table}")
        case "send" | "publish" | "serve":
            return ignore
        case "change":
            return BATCH.changes[0]
        case "meter":
            return get_meter("documents")
    raise AssertionError(f"tests/documents/conftest.py has no value for {name}")


@pytest.fixture(name="value_of", scope="session")
def _value_of() -> Callable[[str, Any], Any]:
    """Values of names that documents use."""
    return value_of


@pytest.fixture(scope="session")
def every_block() -> list[Block]:
    """The blocks of all documents."""
    return [block for blocks in documents().values() for block in blocks]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(name="extract", scope="session")
def _extract() -> Callable[[str, str], Iterator[Block]]:
    """The extractor."""
    return extract


@pytest.fixture(scope="session")
def known_rules() -> tuple[str, ...]:
    """The first words of rules."""
    return RULES
