"""Values that the server cannot send in binary form."""

from __future__ import annotations

import pytest

import aiorepl
from aiorepl import ConfigurationError
from aiorepl.source.server import binary


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("aclitem[]", "ARRAY[(acldefault('r', 10))[1]]"),
        ("holder", "ROW((acldefault('r', 10))[1])::holder"),
        ("holders", "ARRAY[ROW((acldefault('r', 10))[1])::holder]::holders"),
    ],
)
async def test_no_send_function(published, kind, value):
    """The error names the column and its type, and says what to do."""
    await published.execute(
        "CREATE TYPE holder AS (item aclitem)",
        "CREATE DOMAIN holders AS holder[]",
        f"CREATE TABLE t (id int PRIMARY KEY, alone aclitem, c {kind})",
    )
    await published.create_slot()
    await published.execute(f"INSERT INTO t VALUES (1, (acldefault('r', 10))[1], {value})")

    with pytest.raises(ConfigurationError) as caught:
        async with aiorepl.connect(
            published.dsn, slot=published.slot, publication="p", binary=True
        ) as stream:
            async for _ in stream:
                pass

    qualified = kind if kind == "aclitem[]" else f"public.{kind}"
    assert f"public.t.c ({qualified}): no binary output function available for type aclitem" in str(
        caught.value
    )
    assert "public.t.alone" not in str(caught.value)
    assert "without binary (--binary)" in str(caught.value)


async def test_columns_of_money(published, monkeypatch):
    """Under an ``lc_monetary`` without two decimals, columns with money are found, also within other types."""
    await published.execute(
        "CREATE TYPE price AS (amount money)",
        "CREATE DOMAIN fee AS money",
        "CREATE TABLE t (id int PRIMARY KEY, m money, p price[], f fee, n numeric)",
    )
    monkeypatch.setattr(binary, "_CENTS", 1)
    await published.create_slot()

    with pytest.raises(ConfigurationError) as caught:
        async with aiorepl.connect(published.dsn, slot=published.slot, publication="p", binary=True):
            pass

    assert "public.t.f (public.fee), public.t.m (money), public.t.p (public.price[]): " in str(caught.value)


async def test_money_that_is_published_later(published, monkeypatch):
    """The stream stops before the first row of a table with money that was created after its start."""
    await published.execute("CREATE TYPE price AS (amount money)", "CREATE DOMAIN fee AS money")
    monkeypatch.setattr(binary, "_CENTS", 1)
    await published.create_slot()
    received = []

    with pytest.raises(ConfigurationError) as caught:
        async with aiorepl.connect(
            published.dsn, slot=published.slot, publication="p", binary=True
        ) as stream:
            await published.execute("INSERT INTO items VALUES (1)")
            async for transaction in stream:
                received += [change.relation.name async for change in transaction]
                await published.execute(
                    "CREATE TABLE t (id int PRIMARY KEY, m money[], p price, f fee, n numeric)",
                    "INSERT INTO t (id) VALUES (1)",
                )

    assert ["items"] == received
    assert "public.t.m (money[]), public.t.p (public.price), public.t.f (public.fee): " in str(caught.value)
