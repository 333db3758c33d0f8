"""Passwords and keys are shown by nothing that turns objects into text or bytes."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import pprint

import orjson
import pytest

from aiorepl import ConfigurationError, Delivery, Selection, Source
from aiorepl.secret import Secret
from aiorepl.testing import MemorySink, MemorySource

WORD = "s3cr3t"


def holders():
    """Every public object that is given a password or a key."""
    dsn = f"postgresql://user:{WORD}@host/database"
    selection = Selection(mask=("public.t.c",), secret=WORD)
    return [
        Source(dsn, slot="s", publication="p", connect={"password": WORD}),
        MemorySource(dsn, connect={"password": WORD}),
        selection,
        Delivery(MemorySink(), selection=selection),
        Secret(WORD),
    ]


SHOWN = {
    "repr": repr,
    "str": str,
    "format": "{}".format,
    "pprint": pprint.pformat,
    "asdict": lambda holder: repr(dataclasses.asdict(holder)),
    "astuple": lambda holder: repr(dataclasses.astuple(holder)),
    "asdict in JSON": lambda holder: json.dumps(dataclasses.asdict(holder), default=str),
    "JSON": orjson.dumps,
}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("holder", holders(), ids=lambda holder: type(holder).__name__)
def test_nothing_shows_it(holder, shown):
    """Whatever makes text or bytes of the object leaves the secret out, or raises."""
    try:
        text = shown(holder)
    except TypeError:
        return
    assert WORD not in (text.decode("latin-1") if isinstance(text, bytes) else text)


@pytest.mark.parametrize("place", [0, 1, -1])
def test_pickling_says_what_to_do(place):
    """Pickling a source raises an error that says what to do instead."""
    with pytest.raises(TypeError, match="in its environment or in a file"):
        pickle.dumps(holders()[place])


def test_copies_still_connect():
    """Copies and replacements keep the secret."""
    source, _, selection, _, _ = holders()
    for other in (copy.copy(source), copy.deepcopy(source), dataclasses.replace(source, slot="other")):
        assert WORD in other.dsn.reveal()
        assert {"password": WORD} == other.connect.reveal()
    assert WORD == dataclasses.replace(selection, kinds=("insert",)).secret.reveal()
    assert (Secret(WORD), hash(Secret(WORD))) == (Secret.of(Secret(WORD)), hash(Secret.of(WORD)))
    assert Secret(WORD) != WORD


@pytest.mark.parametrize("empty", ["", Secret("")])
def test_an_empty_key_masks_nothing(empty):
    """Masks want a key, and an empty one in a secret is none."""
    with pytest.raises(ConfigurationError, match=r"mask needs a secret|secret is empty: set it"):
        Selection(mask=("public.t.c",), secret=empty)
