"""Every link within the repository leads to a file and a heading."""

from __future__ import annotations

import re

import pytest

# README.md stands on PyPI, too, so its links and pictures are absolute.
HOME = re.compile(
    r"https://(?:github\.com/aiorepl/aiorepl/blob|raw\.githubusercontent\.com/aiorepl/aiorepl)/main/"
)
# Inline links and pictures, and the definitions at the end of a document.
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
DEFINITION = re.compile(r"^\[([^\]]+)\]: .*$", re.MULTILINE)
# Text in brackets: with a name in brackets behind it, or as its own name. Links with an address are no references.
REFERENCE = re.compile(r"\[([^\]\n]+)\](?:\[([^\]\n]+)\]|(?![(\[]))")
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`(?!\])|<!--.*?-->", re.DOTALL | re.MULTILINE)
# GitHub and MkDocs make the same anchors of headings.
REMOVED = re.compile(r"[^\w\- ]")


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r" +", "-", REMOVED.sub("", heading.lower()).strip()) for heading in headings}


@pytest.fixture(scope="session")
def texts(root):
    """Every document."""
    names = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md", "sinks/README.md"]
    paths = [root / name for name in names if (root / name).exists()]
    paths += [*(root / "docs").rglob("*.md"), *(root / "examples").glob("*/README.md")]
    return {path: path.read_text(encoding="utf-8") for path in paths}


def test_every_link(root, texts):
    """Each link into the repository leads to an existing file, and its anchor to an existing heading."""
    broken = []
    for path, text in texts.items():
        for link in (inline or defined for inline, defined in LINK.findall(text)):
            absolute = HOME.match(link)
            if not absolute and link.startswith(("http:", "https:", "mailto:")):
                continue
            name, _, anchor = link.removeprefix(absolute[0] if absolute else "").partition("#")
            folder = root if absolute else path.parent
            target = (folder / name).resolve() if name else path
            if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
                broken.append(f"{path}: {link}")
    assert [] == broken


def test_the_readme_can_stand_anywhere(texts, root):
    """Each link and picture of README.md is absolute, and each reference has its definition."""
    text = texts[root / "README.md"]
    prose = CODE.sub("", DEFINITION.sub("", text))
    assert [] == [link for found in LINK.findall(text) if not (link := "".join(found)).startswith("https://")]
    assert set(DEFINITION.findall(text)) == {name or label for label, name in REFERENCE.findall(prose)}


def test_every_page_is_in_the_site(root):
    """The navigation of the site has each page of docs/ once."""
    listed = re.findall(
        r"([\w/-]+\.md)$", (root / "mkdocs.yml").read_text().partition("\nnav:")[2], re.MULTILINE
    )
    pages = {str(path.relative_to(root / "docs")) for path in (root / "docs").rglob("*.md")}
    assert sorted(pages) == sorted(listed)


def test_every_alert_is_explained(root):
    """The page of alerts lists exactly the rules of examples/deployment."""
    page = (root / "docs/operations/alerts.md").read_text(encoding="utf-8")
    rules = (root / "examples/deployment/alerts.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"alert: (\w+)", rules)) == set(re.findall(r"`(Aiorepl\w+)`", page))


def test_every_test_that_is_named_exists(root):
    """SECURITY.md names the test of each promise; the files and the functions exist."""
    text, missing, file = (root / "SECURITY.md").read_text(encoding="utf-8"), [], root
    named = re.findall(r"`((?:tests/[\w/.]+)?)(?:::(\w+))?`", text)
    for path, function in named:
        file = root / path if path else file
        if not file.exists() or (function and f"def {function}(" not in file.read_text(encoding="utf-8")):
            missing.append((path, function))
    assert len(named) > 30
    assert [] == missing
