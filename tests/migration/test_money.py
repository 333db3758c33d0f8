"""Money on two servers with different lc_monetary: the form does not matter, and another number of decimals is named."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import asyncpg
import pytest

from aiorepl.migration.comparison import Comparison
from aiorepl.testing import EmbeddedServer
from aiorepl.wire.opening import connect_sql

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def locales():
    """A folder with locales whose money has another form, and another number of decimals, than C."""
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/ja_JP").exists():
        pytest.skip("needs localedef and the sources of the locales")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # the servers run as another user
        for name in ("de_DE", "ja_JP"):
            subprocess.run(["localedef", "-i", name, "-f", "UTF-8", f"{folder}/{name}.UTF-8"], check=True)
        yield folder


@pytest.mark.parametrize(("locale", "decimals"), [("de_DE.UTF-8", 2), ("ja_JP.UTF-8", 0)])
async def test_another_lc_monetary(locales, monkeypatch, locale, decimals):
    """Equal amounts are equal whatever their form; with other decimals the table is not compared, and tables without money are."""
    monkeypatch.setenv("LOCPATH", locales)
    with EmbeddedServer() as ours, EmbeddedServer(settings={"lc_monetary": locale}) as theirs:
        for server in (ours, theirs):
            connection = await asyncpg.connect(server.dsn)
            await connection.execute("CREATE PUBLICATION p FOR ALL TABLES")
            await connection.execute("CREATE DOMAIN price AS money")
            await connection.execute("CREATE TABLE costs (id int PRIMARY KEY, price price, n numeric)")
            await connection.execute(
                "INSERT INTO costs SELECT i, (i * 1000)::money, i FROM generate_series(1, 50) i"
            )
            await connection.execute("CREATE TABLE plain AS SELECT 1 AS id")
            await connection.close()
        first, second = await connect_sql(ours.dsn), await connect_sql(theirs.dsn)
        try:
            comparison = Comparison(first, second, _nothing)
            found = {result.name: result async for result in comparison.run(("p",))}
        finally:
            first.terminate()
            second.terminate()
    assert found["public.plain"].same
    if decimals == 2:
        assert found["public.costs"].same, str(found["public.costs"])
    else:
        assert "lc_monetary has another number of decimals on the target" in str(found["public.costs"])


async def _nothing() -> None:
    return None
