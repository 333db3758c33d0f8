"""A journal in an object store, from the command line."""

from __future__ import annotations

import pytest

from aiorepl import Pipeline
from aiorepl.testing import MemorySink, MemorySource, Stream
from aiorepl.testing.messages import column

pytestmark = pytest.mark.by_day

SECRET = "test-secret"


async def test_a_journal_is_named_by_its_url_or_by_its_file(run, refused, bucket, moto, tmp_path):
    """``aiorepl journal`` finds credentials in the environment or in the pipeline's file, and shows none."""
    stream, place = Stream(), bucket.location()
    stream.transaction(stream.table("items", column("id", 23, key=True)).insert("1"))
    sinks = {"one": MemorySink(), "two": MemorySink()}
    await Pipeline(MemorySource(stream=stream), sinks, journal=place, until="now").run()
    environment = {f"AWS_{name.upper()}": value for name, value in place.config.items()}
    config = "".join(f"{name} = '{value}'\n" for name, value in place.config.items())
    file = tmp_path / "pipeline.toml"
    file.write_text(f"[journal]\nurl = '{place.url}'\n[journal.config]\n{config}")

    inspected = await run("journal", "inspect", place.url, **environment)
    assert inspected.out.startswith(f"journal   {place.url}\n")
    assert inspected.out.startswith((await run("journal", "inspect", str(file))).out[:200])
    assert (await run("journal", "drop", str(file), "one")).out.startswith("one dropped; ")
    assert 0 == (await run("journal", "compact", str(file))).code
    assert "history   " in (await run("journal", "inspect", str(file))).out
    assert 0 == (await run("journal", "prune", str(file))).code
    verified = await run("journal", "verify", str(file))
    assert (0, True) == (verified.code, " and its history, no damage found" in verified.out)
    assert SECRET not in inspected.out + inspected.err
    if not moto:  # which looks at no signatures
        file.write_text(file.read_text().replace(f"'{SECRET}'", "'wrong-secret'"))
        await refused(1, "correct secret_access_key", "journal", "inspect", str(file), secret="wrong-secret")
