"""The public names: what ``aiorepl`` says it has, it has."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import aiorepl


def imports_for_type_checkers() -> dict[str, str]:
    """Name → module, of the names imported under ``if TYPE_CHECKING:``, which editors and mypy see."""
    tree = ast.parse(Path(aiorepl.__file__).read_text(encoding="utf-8"))
    blocks = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: str(node.module) for node in imports if node.module != "aiorepl" for alias in node.names
    }


def test_the_three_lists_agree():
    """``__all__``, the table of modules and the imports for type checkers have the same names from the same modules."""
    assert len(aiorepl.__all__) == len(set(aiorepl.__all__))
    assert set(aiorepl.__all__) == set(aiorepl._MODULE_OF)
    assert aiorepl._MODULE_OF == imports_for_type_checkers()
    assert dir(aiorepl) == sorted([*aiorepl.__all__, *aiorepl._PACKAGES])


@pytest.mark.parametrize("name", aiorepl.__all__)
def test_every_name_resolves(name):
    """Each is there, is called what it is called, and is imported once."""
    value = getattr(aiorepl, name)
    if name not in ("RoutingKey", "SinkSpec"):  # aliases of types
        assert getattr(value, "__name__", name) == name
    assert getattr(aiorepl, name) is value


def test_no_other_name():
    """An unknown name raises Python's own error."""
    with pytest.raises(AttributeError, match="module 'aiorepl' has no attribute 'conect'"):
        _ = aiorepl.conect
    assert aiorepl.__version__.count(".") >= 2


@pytest.mark.parametrize("package", ["formats", "spark", "testing"])
def test_a_package_is_imported_on_first_use(package):
    """``import aiorepl`` makes the package reachable without importing it."""
    program = (
        f"import sys, aiorepl; before = 'aiorepl.{package}' in sys.modules; "
        f"print(before, aiorepl.{package}.__name__, {package!r} in dir(aiorepl))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.split() == ["False", f"aiorepl.{package}", "True"]
