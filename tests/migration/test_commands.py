"""``aiorepl verify tables`` and ``aiorepl sequences copy``: output and exit codes; rows only where they are asked for."""

from __future__ import annotations

import asyncio
import json
import os
import sys


async def run(*arguments):
    """Run the installed command; return its exit code and output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "AIOREPL"))
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aiorepl", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def prepared(two):
    """A pair with one equal table and one that differs."""
    pair = await two(18, 18)
    await pair.both(
        "CREATE TABLE one (id int PRIMARY KEY)", "CREATE TABLE two (k text PRIMARY KEY)", "CREATE SEQUENCE s"
    )
    await pair.source.execute("INSERT INTO two VALUES ('planted'); SELECT nextval('s'), nextval('s')")
    return pair


async def test_verify_tables(two):
    """A line for each table and the exit code 1 if one differs; keys with --keys only; the log as JSON."""
    pair = await prepared(two)
    options = ("--dsn", pair.dsns[0], "--publication", "p", "--target-dsn", pair.dsns[1], "--settle", "0")
    code, out, err = await run("verify", "tables", *options)
    assert (1, "") == (code, err)
    lines = out.splitlines()
    assert "public.one: the same (0 rows)" == lines[0]
    assert "public.two: rows differ: 1 only in the source (1 rows)" == lines[1]
    assert lines[2].startswith("1 of 2 tables the same, compared in ")
    code, out, _ = await run("verify", "tables", *options, "--keys", "--table", "public.two")
    assert (1, "  planted") == (code, out.splitlines()[1])
    code, out, _ = await run("verify", "tables", *options, "--table", "public.one")
    assert (0, True) == (code, "planted" not in out)
    code, out, err = await run("--log-format", "json", "verify", "tables", *options, "--table", "none")
    assert (2, "") == (code, out)
    assert "no publication has the table none" in json.loads(err)["message"]
    code, _, err = await run("verify", "tables", "--target-dsn", pair.dsns[1])
    assert (2, True) == (code, "Name the source" in err)


async def test_copy_sequences(two):
    """The exit code is 1 if a sequence is missing on the target."""
    pair = await prepared(two)
    options = ("--dsn", pair.dsns[0], "--target-dsn", pair.dsns[1])
    assert (0, "public.s: 2, was 1\n1 of 1 sequence copied\n", "") == await run("sequences", "copy", *options)
    await pair.target.execute("DROP SEQUENCE s")
    code, out, _ = await run("sequences", "copy", *options)
    assert (1, "0 of 1 sequence copied") == (code, out.splitlines()[1])
