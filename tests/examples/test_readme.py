"""README.md and CONTRIBUTING.md: programs run, commands and files are accepted, and links lead somewhere."""

from __future__ import annotations

import asyncio
import base64
import re
import shlex
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from aiorepl.cli import command
from aiorepl.cli.pipeline_file import load

pytestmark = pytest.mark.xdist_group("examples")

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def program(tmp_path: Path, number: int, **replaced: str) -> Path:
    """A Python block as a file, with texts replaced."""
    source = blocks("python")[number]
    for old, new in replaced.items():
        assert old in source
        source = source.replace(old, new)
    path = tmp_path / f"program_{number}.py"
    path.write_text(source, encoding="utf-8")
    return path


def section(heading: str) -> str:
    """The text below a heading."""
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


async def test_the_first_program(running, connection, slot, database, tmp_path):
    """The example at the top prints every change of a committed transaction, and acknowledges it."""
    await connection.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text); CREATE PUBLICATION shop FOR ALL TABLES"
    )
    path = program(tmp_path, 0, **{"postgresql://user@host/database": database, '"orders"': '"readme"'})
    async with running(str(path)) as process:
        await slot("readme", active=True)
        await connection.execute("INSERT INTO orders VALUES (1, 'new')")
        await process.line("insert orders {'id': 1, 'status': 'new'}")
        await connection.execute("DELETE FROM orders")
        await process.line("delete orders {'id': 1}")
    await connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    await slot("readme")


async def test_the_sink(running, connection, slot, database, tmp_path):
    """The second program's sink records every change once."""
    await connection.execute(
        "CREATE TABLE orders (id int PRIMARY KEY); CREATE PUBLICATION shop FOR TABLE orders;"
        "CREATE TABLE audit (id text PRIMARY KEY, kind text)"
    )
    path = program(tmp_path, 1, **{'"audit"': '"readme_audit"'})
    async with running(str(path), AUDIT_URL=database):
        await slot("readme_audit", active=True)
        await connection.execute("INSERT INTO orders SELECT generate_series(1, 3)")
        await connection.execute("DELETE FROM orders WHERE id = 1")
        async with asyncio.timeout(90):
            while await connection.fetchval("SELECT count(*) FROM audit") < 4:
                await asyncio.sleep(0.02)
        rows = await connection.fetch("SELECT kind, count(*) FROM audit GROUP BY kind ORDER BY kind")
    assert [("delete", 1), ("insert", 3)] == [tuple(row) for row in rows]


def test_the_file(tmp_path, monkeypatch):
    """The pipeline file is in order."""
    for name in ("webhook", "mask"):
        (tmp_path / name).write_text("whsec_" + base64.b64encode(bytes(32)).decode(), encoding="utf-8")
    monkeypatch.setenv("DATABASE_URL", "postgresql://host/database")
    path = tmp_path / "pipeline.toml"
    (text,) = blocks("toml")
    path.write_text(text.replace("/run/secrets", str(tmp_path)), encoding="utf-8")

    assert {"webhook": "webhook"} == load(path).sinks


@pytest.mark.parametrize(
    "line", sorted(set(re.findall(r"^    (aiorepl .*)$|`(aiorepl [a-z][^`]*)`", TEXT, re.MULTILINE)))
)
def test_every_command_is_accepted(line):
    """The command line has each command, with its arguments and options."""
    arguments = shlex.split("".join(line))[1:]
    group: click.Command = command
    while isinstance(group, click.Group) and arguments:
        group = group.commands[arguments.pop(0)]
    if arguments:
        for parameter in group.params:
            if isinstance(parameter.type, click.Path):
                parameter.type.exists = False
        group.make_context("aiorepl", arguments)


def test_every_sink_is_listed():
    """The table of sinks has the names of the entry points."""
    ours = {point.name for point in entry_points(group="aiorepl.sinks") if point.dist.name == "aiorepl"}

    assert ours == set(re.findall(r"^\| \[?`(\w+)`", section("Sinks"), re.MULTILINE))


def test_every_extra_and_version_is_there():
    """Every extra and version that README names exists."""
    assert set(re.findall(r"aiorepl\[(\w+)\]", TEXT)) <= PROJECT["optional-dependencies"].keys()
    assert PROJECT["requires-python"].removeprefix(">=") in section("Install")


def test_every_link_leads_somewhere():
    """Links within the repository name files and headings that are there."""
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", TEXT):
        name, _, anchor = link.partition("#")
        path = ROOT / name
        assert path.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings], link


def test_every_make_target_is_there():
    """``make`` has each target that is named."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", TEXT + CONTRIBUTING)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_folder_is_in_the_layout():
    """The layout in CONTRIBUTING.md names every folder of the package."""
    listed = re.findall(r"^\| `aiorepl/(\w+)(?:/|\.py)`", CONTRIBUTING, re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "aiorepl").glob("*/__init__.py")}

    assert folders == set(listed) - {"sink"}
