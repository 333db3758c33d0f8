"""Lines for people: what stands in them, and that nothing in a row can be a command to a terminal."""

from __future__ import annotations

import re

import click
from hypothesis import given
from hypothesis import strategies as st

from aiorepl import UNCHANGED
from aiorepl.formats.pretty import PrettyFormat
from aiorepl.testing import messages as build
from aiorepl.testing.messages import column
from aiorepl.testing.stream import Stream

INT4, BOOL, JSON = 23, 16, 114


def lines(slices, **options):
    """The lines of slices."""
    return [line.decode() for line in PrettyFormat(**options).events(slices)]


def test_every_kind(stream):
    """When, which, what, where, and the columns; of an update also what was otherwise before."""
    items = stream.table("items", column("id", INT4, key=True), column("done", BOOL), column("note"))
    others = stream.table("others", column("id"))
    whole = stream.table(
        "whole", column("id", INT4, key=True), column("note", key=True), replica_identity="f"
    )
    end = stream.transaction(
        items.insert("1", "t", "it's"),
        items.update("1", None, UNCHANGED),
        items.update("2", "f", "b", key=("1", None, None)),
        whole.update("2", "a", old=("2", "b")),
        whole.update("2", "a", old=("2", "a")),
        items.delete("2", None, None),
        build.truncate(relations=[items.oid, others.oid], cascade=True, restart_identity=True),
        build.message(transactional=True, lsn=1, prefix="audit", content=b"text\xff"),
    )
    alone = stream.message("alone", b"x")
    lsn = type(end)(end - 0x30)
    texts = [
        "INSERT public.items id=1 done=t note='it's'",
        "UPDATE public.items id=1 done=null note=(unchanged)",
        "UPDATE public.items id=2 done=f note='b' <- id=1",
        "UPDATE public.whole id=2 note='a' <- note='b'",
        "UPDATE public.whole id=2 note='a'",
        "DELETE public.items id=2",
        "TRUNCATE public.items, public.others CASCADE RESTART IDENTITY",
        "MESSAGE audit 'text\\xff'",
    ]
    assert [
        f"06:13:21.000000 {lsn} BEGIN 701",
        *(f"06:13:21.000000 {lsn}-{ordinal} {text}" for ordinal, text in enumerate(texts)),
        f"06:13:21.000000 {lsn} COMMIT 701 at {end}",
        f"- {alone}-message MESSAGE alone 'x'",
    ] == lines(stream.slices(), boundaries=True)


def test_prepared_transactions(stream):
    """The outcome of a prepared transaction has a line with its gid."""
    items = stream.table("items", column("id", INT4, key=True))
    ends = [stream.prepare("a", items.insert("1")), stream.prepare("b", items.insert("2"))]
    ends += [stream.commit_prepared("a"), stream.rollback_prepared("b")]
    found = [line.split(" ", 2)[2] for line in lines(stream.again(), boundaries=True)]
    assert [
        "BEGIN 701",
        "INSERT public.items id=1",
        f"PREPARE 701 'a' at {ends[0]}",
        "BEGIN 702",
        "INSERT public.items id=2",
        f"PREPARE 702 'b' at {ends[1]}",
        f"COMMIT PREPARED 701 'a' at {ends[2]}",
        f"ROLLBACK PREPARED 702 'b' at {ends[3]}",
    ] == found


def test_long_values_are_cut(stream):
    """Long values are cut and followed by their length."""
    items = stream.table("items", column("note"))
    numbers = stream.table("numbers", column("n", 1700))
    stream.transaction(items.insert("x" * 81), items.insert("y" * 80), numbers.insert("9" * 1000))
    first, second, third = lines(stream.slices())
    assert third.endswith(f"n={'9' * 80}… (1000 characters)")
    assert first.endswith(f"note='{'x' * 80}'… (81 characters)")
    assert second.endswith(f"note='{'y' * 80}'")


anything = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(anything, anything, st.sampled_from(["x\x1b[2J", "\x9b31m", "a\nb", "\u202eabc", "\r"]))
def test_nothing_but_printable_characters(name, value, hostile):
    """Escape sequences, line ends and bidirectional controls in names, values and messages are escaped."""
    stream = Stream()
    table = stream.table(name + hostile, column(hostile + name), namespace=hostile)
    content = (value + hostile).encode()
    stream.transaction(
        table.insert(value + hostile),
        build.message(transactional=True, lsn=1, prefix=hostile + name, content=content),
    )
    for line in lines(stream.slices()):
        assert line.isprintable()


def test_colour(stream):
    """Says the same in colours, which are the only escape sequences."""
    items = stream.table("items", column("id", INT4, key=True), column("note"))
    stream.transaction(items.insert("1", "\x1b[31m"), items.update("1", UNCHANGED))
    slices = stream.slices()
    plain, coloured = lines(slices), lines(slices, colour=True)
    assert plain != coloured
    assert plain == list(map(click.unstyle, coloured))
    assert all(re.search("\x1b\\[32m.*INSERT|\x1b\\[33m.*UPDATE", line) for line in coloured)
