"""What the server cannot send in binary form, and money under other locales."""

from __future__ import annotations

import pytest

from aiorepl import ConfigurationError, Source
from aiorepl.source.server.binary import require_cents


class Answers:
    """A connection that answers queries in order."""

    def __init__(self, *answers: list[dict[str, str]]) -> None:
        self._answers = list(answers)

    async def query(self, _statement):
        return self._answers.pop(0)


@pytest.fixture
def source() -> Source:
    return Source("postgresql://host/shop", slot="s", publication="p", binary=True)


@pytest.mark.parametrize("units", ["01", "00000000000003e8"])
async def test_money_without_two_decimals(source, units):
    """A database whose money has another number of decimals is refused by the columns' names."""
    columns = [{"name": f"public.t.m{number} (money)"} for number in range(6)]

    with pytest.raises(
        ConfigurationError, match=r"public\.t\.m0 \(money\), .*m4 \(money\) and others: .*lc_monetary"
    ):
        await require_cents(Answers([{"units": units}], columns), source)


async def test_money_that_is_read(source):
    """Two decimals need no look at the columns, and other decimals matter only if a column has money."""
    await require_cents(Answers([{"units": "0000000000000064"}]), source)
    await require_cents(Answers([{"units": "01"}], []), source)
