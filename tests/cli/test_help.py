"""``--help``: every command and option says what it does."""

from __future__ import annotations

import click
import pytest

from aiorepl.cli import command


def commands(group: click.Group, path: str = "aiorepl"):
    """Every command below a group, with its path."""
    for name, child in group.commands.items():
        yield f"{path} {name}", child
        if isinstance(child, click.Group):
            yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands(command))


def test_the_commands():
    """These are the top-level commands, in the order in which ``--help`` lists them."""
    assert [
        "check",
        "tail",
        "run",
        "top",
        "wait",
        "snapshot",
        "slots",
        "models",
        "journal",
        "sinks",
        "spark",
        "verify",
        "sequences",
        "upgrade",
        "dlq",
        "decrypt",
        "prove",
        "demo",
        "server",
    ] == command.list_commands(click.Context(command))


@pytest.mark.parametrize("path", COMMANDS)
def test_one_line(path):
    """The line in the list of commands is a whole sentence that is not cut off."""
    line = COMMANDS[path].get_short_help_str(limit=88)

    assert line.endswith(".")
    assert not line.endswith("...")


@pytest.mark.parametrize("path", COMMANDS)
def test_options(path):
    """Every option has a help text, a sentence."""
    options = [parameter for parameter in COMMANDS[path].params if isinstance(parameter, click.Option)]

    assert [] == [option.name for option in options if not (option.help or "").endswith(".")]
