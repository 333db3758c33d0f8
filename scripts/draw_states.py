"""Draws docs/reference/states.md from the assembler's table of transitions.

python scripts/draw_states.py            writes docs/reference/states.md
python scripts/draw_states.py --check    exits 1 if the page is not current
"""
# ruff: noqa: INP001

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import get_args

from aiorepl.pgoutput.messages import AnyMessage
from aiorepl.transactions import states
from aiorepl.transactions.states import TRANSITIONS, AssemblerState, guard

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "states.md"


def spaced(kind: type) -> str:
    """A message's name as PostgreSQL's documents spell it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {AssemblerState.BETWEEN.name}"]
    lines += [f"    {state.name}: {state.value}" for state in AssemblerState]
    for state, kinds in TRANSITIONS.items():
        arrows: dict[AssemblerState, list[str]] = defaultdict(list)
        for kind, following in kinds.items():
            arrows[following].append(spaced(kind))
        for following, names in arrows.items():
            # Three names per line, because a diagram with a dozen names in one line is unreadable.
            rows = [", ".join(names[start : start + 3]) for start in range(0, len(names), 3)]
            lines.append(f"    {state.name} --> {following.name}: {'<br/>'.join(rows)}")
    return "\n".join(lines)


def guards() -> str:
    """The illegal messages of each state, with the text of the error."""
    lines = ["| state | message | guard |", "|---|---|---|"]
    for state, kinds in TRANSITIONS.items():
        rejected: dict[str, list[str]] = defaultdict(list)
        for kind in get_args(AnyMessage):
            if kind not in kinds:
                rejected[guard(state, kind)].append(spaced(kind))
        lines += [f"| {state.value} | {', '.join(names)} | {words} |" for words, names in rejected.items()]
    return "\n".join(lines)


def page() -> str:
    """The contents of docs/reference/states.md."""
    theory = inspect.cleandoc(states.__doc__ or "").partition("\n\n")[2].replace("``", "`")
    return f"""# Which message may follow which

<!-- Drawn by scripts/draw_states.py from aiorepl/transactions/states.py: change that, and draw again. -->

{theory}

<!-- test: elsewhere tests/transactions/test_diagram.py -->

```mermaid
{diagram()}
```

Every other message raises a `ProtocolError` with the message's name and this text:

{guards()}
"""


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(
            0 if PAGE.exists() and PAGE.read_text() == page() else f"{PAGE} is not current: run {sys.argv[0]}"
        )
    PAGE.write_text(page())
