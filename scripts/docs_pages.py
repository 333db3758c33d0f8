"""What MkDocs does with each page of docs/: adds what the code says itself, and leads links out of docs/ to the repository.

See ``hooks`` in mkdocs.yml.
"""
# ruff: noqa: INP001

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

import click

from aiorepl.cli import command
from aiorepl.cli.example_file import EXAMPLE

ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page as MkDocs renders it."""
    here = page.file.src_uri
    if here == "reference/cli.md":
        markdown += "".join(commands(command, "aiorepl", 2))
    elif here == "reference/pipeline-file.md":
        markdown += f"\n```toml\n{EXAMPLE}```\n"
    markdown = re.sub(r"^ *<!-- (test|page): .*? -->\n\n?", "", markdown, flags=re.MULTILINE)

    def link(found: re.Match[str]) -> str:
        path, hash_, anchor = found[1].partition("#")
        target = normpath(f"docs/{dirname(here)}/{path}")
        if target.startswith("docs/") or not (ROOT / target).exists():
            return found[0]  # MkDocs checks it
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"]({config['repo_url']}/{kind}/main/{target}{hash_}{anchor})"

    return re.sub(r"\]\((\.\./[^)\s]+)\)", link, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page's HTML; a docstring's ``::`` before a block is a colon."""
    return html.replace("::</p>", ":</p>")


def commands(
    group: click.Command, name: str, level: int, parent: click.Context | None = None
) -> Iterator[str]:
    """Yield the help of a command and those below it."""
    context = click.Context(group, info_name=name, parent=parent, terminal_width=80, **group.context_settings)
    text = group.get_help(context)
    yield f"\n{'#' * min(level, 4)} {context.command_path}\n\n```text\n{text}\n```\n"
    if isinstance(group, click.Group):
        for below in sorted(group.commands):
            yield from commands(group.commands[below], below, level + 1, context)
