"""The public names: what ``aiorepl`` says it has, it has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aiorepl


def imports_for_type_checkers() -> dict[str, str]:
    """Name → module, of the imports under ``if TYPE_CHECKING:``; what editors and mypy see."""
    tree = ast.parse(Path(aiorepl.__file__).read_text(encoding="utf-8"))
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_the_three_lists_agree():
    """``__all__``, the table of homes and the imports for type checkers have the same names from the same modules."""
    assert len(aiorepl.__all__) == len(set(aiorepl.__all__))
    assert set(aiorepl.__all__) == set(aiorepl._HOME_OF)
    assert aiorepl._HOME_OF == imports_for_type_checkers()
    assert dir(aiorepl) == sorted(aiorepl.__all__)


@pytest.mark.parametrize("name", aiorepl.__all__)
def test_every_name_resolves(name):
    """Each is there, is called what it is called, and is imported once."""
    value = getattr(aiorepl, name)
    assert getattr(value, "__name__", name) == name
    assert getattr(aiorepl, name) is value


def test_no_other_name():
    """A name that is not there is said to be missing as Python says it."""
    with pytest.raises(AttributeError, match="module 'aiorepl' has no attribute 'conect'"):
        _ = aiorepl.conect
    assert aiorepl.__version__.count(".") >= 2
