"""``--dsn`` beside a pipeline's file replaces the file's dsn, in every command that takes both."""

from __future__ import annotations

import sys

import pytest

NOWHERE = "postgresql://u@127.0.0.1:1/d"


@pytest.fixture
async def elsewhere(published, tmp_path):
    """A pipeline whose file names a server that does not answer."""
    await published.create_slot()
    file = tmp_path / "aiorepl.toml"
    file.write_text(
        f"[source]\ndsn = '{NOWHERE}'\nslot = '{published.slot}'\npublication = 'p'\n"
        f"[journal]\nurl = '{tmp_path / 'journal'}'\n"
    )
    return file


COMMANDS = {
    "check": ["check", "FILE", "--dsn", "DSN"],
    "snapshot": ["snapshot", "--pipeline", "FILE", "--dsn", "DSN", "public.items"],
    "slots": ["slots", "--pipeline", "FILE", "--dsn", "DSN"],
    "slots list": ["slots", "list", "--pipeline", "FILE", "--dsn", "DSN"],
    "slots, DSN first": ["slots", "--dsn", "DSN", "list", "--pipeline", "FILE"],
    "verify": ["verify", "tables", "--pipeline", "FILE", "--dsn", "DSN", "--target-dsn", "DSN"],
    "slots, file first": ["slots", "--pipeline", "FILE", "list", "--dsn", "DSN"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_the_option_replaces_the_file(run, published, elsewhere, command):
    """The server of the option is used."""
    words = [{"FILE": str(elsewhere), "DSN": published.dsn}.get(word, word) for word in command]
    done = await run(*words)
    assert 0 == done.code, done.out + done.err


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_the_file_precedes_the_environment(run, published, elsewhere, command):
    """AIOREPL_DSN is a default: it does not replace the file's dsn."""
    at = command.index("--dsn")
    words = [
        {"FILE": str(elsewhere), "DSN": published.dsn}.get(word, word)
        for word in command[:at] + command[at + 2 :]
    ]
    done = await run(*words, AIOREPL_DSN=published.dsn)
    assert 3 == done.code, done.out + done.err
    assert "127.0.0.1:1" in done.out + done.err


async def test_check_says_so(run, published, elsewhere):
    """The finding about the file names the option; a variable in the replaced dsn need not be set."""
    elsewhere.write_text(elsewhere.read_text().replace(NOWHERE, "${NOT_SET}"))
    done = await run("check", str(elsewhere), "--dsn", published.dsn)
    assert (0, True) == (done.code, "; --dsn replaces its dsn" in done.out), done.out


async def test_slots_asks_for_the_password(run, published, elsewhere):
    """``slots`` connects as the pipeline does, with its password_command."""
    script = f"password_command = ['{sys.executable}', '-c', 'import sys; sys.exit(\"no password today\")']"
    text = elsewhere.read_text().replace(NOWHERE, published.dsn)
    elsewhere.write_text(text.replace("[source]", f"[source]\n{script}"))
    done = await run("slots", "--pipeline", str(elsewhere))
    assert (3, True) == (done.code, "password_command" in done.err), done.err
