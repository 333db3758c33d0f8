"""Names of publications on the command line: plain, or quoted as in SQL; in files and in Python as they are."""

from __future__ import annotations

import click
import pytest

from aiorepl import Source
from aiorepl.cli.options import publication_names

ODD = 'Pub "lic", a'
QUOTED = '"Pub ""lic"", a"'


def read(*values):
    """Return what click parses of ``--publication`` with these values."""
    return publication_names(click.Context(click.Command("tail")), click.Option(["--publication"]), values)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("p", ["p"]),
        ("a,b", ["a", "b"]),
        (" a , b ,", ["a", "b"]),
        ("Plain keeps Case", ["Plain keeps Case"]),
        (QUOTED, [ODD]),
        (f"a,{QUOTED}, b", ["a", ODD, "b"]),
        ('" a "', [" a "]),
        ('""""', ['"']),
        ('","', [","]),
        ('Pub "p" é,b', ['Pub "p" é', "b"]),
    ],
)
def test_lists(value, expected):
    """Commas separate names, but not within quotes, where a doubled quote is one."""
    assert tuple(expected) == read(value)


@pytest.mark.parametrize("value", ['"a', '"a"b', '""', '"a" "b"', 'a,"'])
def test_no_list(value):
    """A quote that is not closed, or within a name, is rejected with an example."""
    with pytest.raises(click.BadParameter, match=r"is no list of names: quote a name"):
        read(value)


def test_as_they_are_in_python():
    """In a program or a file, quotes and commas in a name have no meaning."""
    assert (ODD, QUOTED) == Source(None, slot="s", publication=[ODD, QUOTED]).options().publications
    assert ("a,b",) == Source(None, slot="s", publication="a,b").options().publications


async def test_on_a_server(run, published, tmp_path):
    """A publication with quotes and a comma in its name is tailed and checked, from the command line and from a file."""
    await published.execute(f"CREATE PUBLICATION {QUOTED} FOR ALL TABLES")
    await published.create_slot()
    await published.execute("INSERT INTO items VALUES (1)")
    source = ["--dsn", published.dsn, "--slot", published.slot]
    tailed = await run("tail", *source, "--publication", f"{QUOTED},p", "--until", "now")
    assert (0, [1]) == (tailed.code, [event["key"]["id"] for event in tailed.events()])
    checked = await run("check", *source, "--publication", QUOTED)
    assert 0 == checked.code
    assert f"{ODD}: 1 table" in checked.out

    file = tmp_path / "aiorepl.toml"
    file.write_text(
        f"[source]\ndsn = '{published.dsn}'\nslot = '{published.slot}'\npublication = ['{ODD}']\n"
        f"[[sinks]]\ntype = 'jsonl'\npath = '{tmp_path}'\n"
    )
    checked = await run("check", str(file))
    assert (0, True) == (checked.code, f"{ODD}: 1 table" in checked.out)
