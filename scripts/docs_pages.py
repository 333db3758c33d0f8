"""What MkDocs does with each page of docs/: leads links out of docs/ to the repository, and removes comments for tests.

See ``hooks`` in mkdocs.yml. ``reference.py`` writes the pages that the code says itself.
"""
# ruff: noqa: INP001

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

ROOT = Path(__file__).parents[1]


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page as MkDocs renders it."""
    here = page.file.src_uri
    markdown = re.sub(r"^ *<!-- (test|page): .*? -->\n\n?", "", markdown, flags=re.MULTILINE)

    def link(found: re.Match[str]) -> str:
        path, hash_, anchor = found[1].partition("#")
        target = normpath(f"docs/{dirname(here)}/{path}")
        if target.startswith("docs/") or not (ROOT / target).exists():
            return found[0]  # MkDocs checks it
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"]({config['repo_url']}/{kind}/main/{target}{hash_}{anchor})"

    return re.sub(r"\]\((\.\./[^)\s]+)\)", link, markdown)
