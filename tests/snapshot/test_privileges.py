"""An initial snapshot fails if the role cannot see all rows."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from aiorepl.errors import ConfigurationError


@pytest.fixture
async def role(loaded) -> AsyncIterator[str]:
    """A role that may replicate and nothing else; ``loaded`` reads as it."""
    name = f"reader_{secrets.token_hex(4)}"
    await loaded.connection.execute(f"CREATE ROLE {name} LOGIN REPLICATION PASSWORD 'secret'")
    parts = urlsplit(loaded.dsn)
    host = parts.netloc.rpartition("@")[2]
    loaded.reader = parts._replace(netloc=f"{name}:secret@{host}").geturl()
    yield name
    await loaded.connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
async def secured(loaded, role) -> str:
    """A table with a policy that hides rows from the role, by a function that tells who calls it."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a SELECT generate_series(1, 21); "
        "CREATE TABLE calls (who text); CREATE FUNCTION hidden(id int) RETURNS bool LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'called as %', current_user; END$$; "
        "CREATE POLICY visible ON a USING (hidden(id)); ALTER TABLE a ENABLE ROW LEVEL SECURITY; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}; CREATE PUBLICATION one FOR TABLE a"
    )
    return role


async def test_row_level_security_is_refused(loaded, secured):
    """If a policy would hide rows, the error names the table and the missing attribute."""
    with pytest.raises(
        ConfigurationError, match=rf"row-level security .* public\.a .*ALTER ROLE \"{secured}\" BYPASSRLS"
    ):
        await loaded.load("one")


@pytest.mark.parametrize("way", ["BYPASSRLS", "owner"])
async def test_all_rows_past_row_level_security(loaded, secured, way):
    """A role with BYPASSRLS, and the table's owner, load all rows; the policy's function is not called."""
    ways = {"BYPASSRLS": f"ALTER ROLE {secured} BYPASSRLS", "owner": f"ALTER TABLE a OWNER TO {secured}"}
    await loaded.connection.execute(ways[way])

    assert 21 == len((await loaded.tables("one"))["public.a"])


async def test_the_owner_under_forced_row_level_security(loaded, secured):
    """FORCE ROW LEVEL SECURITY applies to the owner, too, and is an error."""
    await loaded.connection.execute(
        f"ALTER TABLE a OWNER TO {secured}; ALTER TABLE a FORCE ROW LEVEL SECURITY"
    )

    with pytest.raises(ConfigurationError, match=r"public\.a"):
        await loaded.load("one")


@pytest.mark.parametrize(
    ("grant", "lacks"),
    [
        ("", r"permission denied for table a"),
        ("GRANT SELECT (id) ON a TO {}", r"permission denied for table a"),
    ],
    ids=["nothing", "some columns"],
)
async def test_a_missing_privilege(loaded, role, grant, lacks):
    """A table that the role may not read is named, with the GRANT that it needs."""
    await loaded.connection.execute("CREATE TABLE a (id int PRIMARY KEY, note text)")
    if grant:
        await loaded.connection.execute(grant.format(role))

    with pytest.raises(
        ConfigurationError, match=rf"public\.a.*{lacks}.*GRANT SELECT ON \"public\"\.\"a\" TO \"{role}\""
    ):
        await loaded.load()


async def test_many_missing_privileges(loaded, role):
    """Tables that the role may not read are one error, whose statements are for all of them, but name at most twenty."""
    await loaded.connection.execute("CREATE SCHEMA other; CREATE TABLE other.a (id int)")
    await loaded.connection.execute("; ".join(f"CREATE TABLE a{number:02} (id int)" for number in range(23)))

    with pytest.raises(ConfigurationError) as caught:
        await loaded.load()
    text = str(caught.value)
    await loaded.connection.execute("DROP SCHEMA other CASCADE")
    assert text.startswith("a snapshot cannot read other.a, public.a00, public.a01, ")
    assert (
        f': permission denied: GRANT USAGE ON SCHEMA "other", "public" TO "{role}"; GRANT SELECT ON "other"."a", '
        in text
    )
    assert text.endswith(f'"public"."a18" TO "{role}", and so on for 4 more tables')


async def test_privileges_on_published_columns_suffice(loaded, role):
    """A role that may read the published columns alone loads them."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY, secret text); INSERT INTO a VALUES (1, 's'); "
        f"GRANT SELECT (id) ON a TO {role}; CREATE PUBLICATION one FOR TABLE a (id)"
    )

    assert {"public.a": [{"id": 1}]} == await loaded.tables("one")


async def test_time_limits_of_the_role_do_not_hold(loaded, role):
    """A load takes as long as it takes, whatever time limits the role has for its statements."""
    await loaded.connection.execute(
        "CREATE TABLE a (id int PRIMARY KEY); INSERT INTO a VALUES (1); "
        f"GRANT SELECT ON a TO {role}; ALTER ROLE {role} SET statement_timeout = '150ms'; "
        f"ALTER ROLE {role} SET idle_in_transaction_session_timeout = '150ms'; CREATE PUBLICATION one FOR TABLE a"
    )

    async def wait() -> None:
        await loaded.connection.execute("SELECT pg_sleep(0.3)")

    assert 1 == sum(len(part.changes) for part in await loaded.load("one", during=wait))
