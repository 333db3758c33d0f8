"""The extraction of blocks from documents, and of the rules in their comments."""

from __future__ import annotations

import pytest

DOCUMENT = """\
# Title

<!-- test: given a, b; runs SELECT 1 -->

```python
if x:
    pass
```

    aiorepl tail

<!-- test: shown: not ours -->
    $ other

- an item

    its text

  ```toml
  [a]
  ```

<!-- test: run -->
Text in between takes the rule away.

```sh
aiorepl check
```
"""


def test_extract(extracted):
    """Fences, also within list items, and indented text outside of list items are blocks; a rule applies to the next block."""
    assert [
        (5, "python", "if x:\n    pass\n", {"given": "a, b", "runs": "SELECT 1"}),
        (10, "sh", "aiorepl tail\n", {}),
        (13, "text", "$ other\n", {"shown:": "not ours"}),
        (19, "toml", "[a]\n", {}),
        (26, "sh", "aiorepl check\n", {}),
    ] == extracted(DOCUMENT)


@pytest.fixture
def extracted(extract):
    """The blocks of a text."""
    return lambda text: [(b.line, b.language, b.text, b.rules) for b in extract("page", text)]


def test_every_rule_is_known(every_block, known_rules):
    """The documents use only known rules, so a misspelled one is found."""
    assert {} == {str(block): block.rules for block in every_block if block.rules.keys() - set(known_rules)}
