"""What is a block, and what its comment says."""

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
    """Fences, also within items of lists, and indented text that is no item's; a rule is the next block's."""
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
    """A misspelled rule is no rule."""
    assert {} == {str(block): block.rules for block in every_block if block.rules.keys() - set(known_rules)}
