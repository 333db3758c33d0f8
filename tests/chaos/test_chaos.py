"""A short run of the chaos suite, with a new seed every day."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.today import day

SUITE = Path(__file__).with_name("suite.py")
# No program is started after this many seconds.
SECONDS = 15

# Executes the imports of each sabotage, and looks for the attributes that it sets.
SABOTAGED = """
import ast, importlib, inspect, sys
sys.path.append("../..")
import sabotage
from tests.spark import mirror_process
found = 0
for module in (sabotage, mirror_process):
    for function in ast.parse(inspect.getsource(module)).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        names = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                exec(ast.unparse(node), names)
        for node in ast.walk(function):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Attribute) and ast.unparse(target.value) in names:
                    assert hasattr(names[ast.unparse(target.value)], target.attr), (function.name, ast.unparse(target))
                    found += 1
assert found > 30, found
"""

pytestmark = pytest.mark.server


def test_random_programs_of_today():
    """No program loses, invents, tears or reorders a change, or confirms one too early."""
    seed = day() * 1000
    command = [sys.executable, SUITE, "--short", "--minutes", str(SECONDS / 60), "--seed", str(seed)]
    told = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    print(told.stdout)
    assert 0 == told.returncode, f"again: python {SUITE} --short --replay SEED\n{told.stdout}"


def test_every_named_point_exists():
    """Each named fault point resolves to a function."""
    command = [sys.executable, "-c", "import hooks; [hooks.resolve(path) for path in hooks.NAMED.values()]"]

    subprocess.run(command, cwd=SUITE.parent, check=True)


def test_every_sabotage_replaces_something():
    """What a sabotage sets exists: after a change of the code, it would otherwise be a bug that cannot show."""
    subprocess.run([sys.executable, "-c", SABOTAGED], cwd=SUITE.parent, check=True)


def test_a_program_survives_its_json():
    """A program's JSON replays it, and each simpler program differs from it."""
    command = (
        "from drawing import draw\n"
        "from program import Program\n"
        "one = draw(1)\n"
        "assert one == draw(1) == Program.from_json(one.to_json())\n"
        "simpler = list(one.shorter())\n"
        "assert simpler and one not in simpler"
    )

    subprocess.run([sys.executable, "-c", command], cwd=SUITE.parent, check=True)
