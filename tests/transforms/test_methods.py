"""Masking methods: what each replaces, what it refuses, and that values and Arrow columns have equal masks."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorepl.errors import ConfigurationError, DataError, PermanentError
from aiorepl.formats.arrow.hidden import masked
from aiorepl.pgoutput.relations import Attribute
from aiorepl.pgoutput.tuples import UNCHANGED
from aiorepl.testing.messages import Binary, column
from aiorepl.testing.stream import Stream
from aiorepl.transactions.rewriting import redescribed
from aiorepl.transforms.encryption import decryptor
from aiorepl.transforms.filter import StreamFilter
from aiorepl.transforms.masking import Rewriting
from aiorepl.transforms.methods import Method, parse_entry
from aiorepl.transforms.rules import KEPT
from aiorepl.transforms.selection import Selection

KEY, FORMER = "k" * 32, "f" * 44
METHODS = ("hash", "partial(4)", "constant(gone, or not)", "null", "format", "encrypt")
SHOWING = ("partial(4)", "format")
MERGING = (*SHOWING, "constant(x)", "null")
TEXT, INT4, INT8, NUMERIC, DATE, UUID, FLOAT8, JSONB = 25, 23, 20, 1700, 1082, 2950, 701, 3802


def selection(method: str, **options) -> Selection:
    """Return a selection that masks every column but ``id`` by a method."""
    options = {"secret": "s3cr3t", "encryption_key": KEY, "keep": ("*.*.id",)} | options
    return Selection(mask={"*.*.*": method}, **options)


def function(method: str):
    """Return the function of a method."""
    (found,) = selection(method).masks.values()
    return found


def mask(method: str, text: str) -> str | None:
    """Return the mask of a text."""
    found = function(method)(text.encode())
    return None if found is None else found.decode()


def change(chosen: Selection, *columns, row, stream: Stream | None = None, **table):
    """Return a new row after the selection."""
    stream = stream or Stream()
    stream.transaction(stream.table("t", *columns, **table).insert(*row))
    (part,) = stream.slices()
    (found,) = StreamFilter(chosen).apply(part).changes
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4711123412349876", "************9876"),
        ("12345678", "****5678"),
        ("1234567", "*******"),
        ("", ""),
        ("größe-äöü", "*****-äöü"),
    ],
)
def test_partial(text, expected):
    """The last characters stay, and at least half of a value is hidden."""
    assert expected == mask("partial(4)", text)


def test_format():
    """Digits stay digits, letters stay letters of the same case, and ASCII separators stay; no other character does."""
    found = mask("format", "Ada Löve+1@x-Ample.org, 2026 — ß٣Ω")
    shape = "".join("9" if c.isdigit() else "A" if c.isupper() else "a" if c.isalpha() else c for c in found)
    assert "Aaa Aaaa+9@a-Aaaaa.aaa, 9999 a a9A" == shape
    assert found.isascii()
    assert found == mask("format", "Ada Löve+1@x-Ample.org, 2026 — ß٣Ω")
    assert found != Selection(mask={"a.b.c": "format"}, secret="other").masks[Method("format")](
        found.encode()
    )


def test_a_format_depends_on_each_character_and_on_the_secret():
    """A change of one character changes the mask of the others, so a prefix of a value is not recognizable."""
    one, other = mask("format", "a" * 40 + "b"), mask("format", "a" * 40 + "c")
    assert one[:40] != other[:40]
    assert len(set(one)) > 5


def test_constants():
    """A constant is any text, with commas and parentheses; null is NULL."""
    assert "gone, or not" == mask("constant(gone, or not)", "x")
    assert "" == mask("constant()", "x")
    assert "(a) = b" == mask("constant((a) = b)", "x")
    assert mask("null", "x") is None


@given(text=st.text(max_size=60))
def test_encrypted_values_can_be_decrypted(text):
    """The value has the id of its key; present and former keys decrypt it in any order."""
    new, old = mask("encrypt", text), next(iter(selection("encrypt", encryption_key=FORMER).masks.values()))
    decrypt = decryptor([FORMER, KEY])
    assert text == decrypt(new) == decrypt(old(text.encode()).decode())
    assert new == mask("encrypt", text)
    assert new.split(":")[1] != old(b"").decode().split(":")[1]


def test_what_cannot_be_decrypted():
    """Another key, an altered value and another text are errors without the value."""
    value = mask("encrypt", "p4ssword")
    with pytest.raises(DataError, match=r"the key '[0-9a-f]{8}', which is not among the keys"):
        decryptor([FORMER])(value)
    for altered in (value[:-3], value[:-4] + "AAAA", value + "é"):
        with pytest.raises(DataError, match="damaged, or was altered"):
            decryptor([KEY])(altered)
    for text in ("", "p4ssword", "siv1:", "siv1:00000000:"):
        with pytest.raises(DataError, match=r"no encrypted value|not among"):
            decryptor([KEY])(text)


@pytest.mark.parametrize("method", METHODS)
@given(texts=st.lists(st.none() | st.text(max_size=30), max_size=12), repeats=st.integers(1, 3))
def test_values_and_columns_have_equal_masks(method, texts, repeats):
    """The Arrow form computes each distinct value once, and gives each value the mask that it has alone. NULL stays NULL."""
    texts *= repeats
    expected = [None if text is None else mask(method, text) for text in texts]
    column = pa.array(texts, pa.string())
    assert expected == masked(column, function(method)).to_pylist()
    assert expected[1:] == masked(column.slice(1), function(method)).to_pylist()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("oid", [TEXT, INT4, INT8, NUMERIC, 1043, 1042])
def test_null_and_unchanged_values_stay(method, oid):
    """NULL and the marker of an unchanged value are what they were, under every method."""
    stream = Stream()
    table = stream.table("t", column("id", INT4, key=True), column("v", oid), column("w", oid))
    stream.transaction(table.insert("1", None, "12"), table.update("1", UNCHANGED, "12"))
    (part,) = stream.slices()
    first, second = StreamFilter(selection(method)).apply(part).changes
    assert {"id": 1, "v": None, "w": mask(method, "12")} == first.new
    assert second.unchanged == ("v",) or "v" in second.unchanged


@pytest.mark.parametrize("method", SHOWING)
@pytest.mark.parametrize("oid", [DATE, UUID, FLOAT8, JSONB, 1009, 16, 17])
def test_types_that_a_method_refuses(method, oid):
    """A method that shows the form of values refuses the column before its first row, and says what to do."""
    with pytest.raises(
        PermanentError, match=r"mask: the type of public\.t\.v is \w+, .* mask the column by hash"
    ) as e:
        change(selection(method), column("id", INT4, key=True), column("v", oid), row=("1", "p4ssword"))
    assert "p4ssword" not in str(e.value)


@pytest.mark.parametrize("method", SHOWING)
def test_types_by_name(method):
    """A domain is named by its base type, and citext is a text; a type without a name is refused."""
    for name, accepted in (("text", True), ("citext", True), ("mood", False), (None, False)):
        stream = Stream()
        if name is not None:
            stream.type_(60001, name)
        arguments = (selection(method), column("id", INT4, key=True), column("v", 60001))
        if accepted:
            assert (
                mask(method, "12345678") == change(*arguments, row=("1", "12345678"), stream=stream).new["v"]
            )
            continue
        with pytest.raises(PermanentError, match="mask: the type"):
            change(*arguments, row=("1", "12345678"), stream=stream)


@pytest.mark.parametrize("method", MERGING)
def test_keys(method):
    """A method that may give two rows one key is refused on columns of the key, by name."""
    name = method.partition("(")[0]
    with pytest.raises(
        PermanentError, match=rf"public\.t\.k is a column of the key, .* the method {name}: mask"
    ):
        change(selection(method), column("k", key=True), row=("12345678",))
    found = change(selection(method), column("k"), row=("12345678",), replica_identity="f")
    assert mask(method, "12345678") == found.new["k"]


@pytest.mark.parametrize("method", MERGING)
@pytest.mark.parametrize("again", ["hash", "encrypt"])
def test_keys_that_the_server_does_not_name(method, again):
    """Under REPLICA IDENTITY FULL, a description says by which method a column was masked, also after a second mask."""
    found = change(
        selection(method), column("id", INT4), column("k"), row=("1", "12345678"), replica_identity="f"
    )
    once = found.layout.relation
    twice = Rewriting(once, (KEPT, Method(again)), {Method(again): function(again)}).target
    for relation in (once, twice, redescribed(twice, twice.columns)):
        relation.require_distinct([0])
        with pytest.raises(
            PermanentError, match=rf"public\.t\.k is a column .* the method {method.partition('(')[0]}:"
        ):
            relation.require_distinct([0, 1])
    distinct = change(selection(again), column("k"), row=("12345678",), replica_identity="f").layout.relation
    distinct.require_distinct([0])


@pytest.mark.parametrize("method", ["hash", "encrypt"])
def test_masked_keys(method):
    """A key that is hashed or encrypted identifies rows, in text and in binary."""
    found = change(selection(method), column("k", INT4, key=True), row=("7",))
    binary = change(
        selection(method), column("k", INT4, key=True), row=(Binary(b"\0\0\0\7"),), stream=Stream(binary=True)
    )
    assert {"k": mask(method, "7")} == found.key == binary.key


def test_the_first_pattern_applies():
    """Of several patterns that match a column, the first one names the method; an entry of a list may name one, too."""
    chosen = Selection(mask=("*.*.phone = partial(2)", "*.*.*"), secret="s", keep=("*.*.id",))
    found = change(
        chosen, column("id", INT4, key=True), column("phone"), column("v"), row=("1", "123456", "x")
    ).new
    assert "****56" == found["phone"]
    assert 64 == len(found["v"])


def test_entries():
    """A pattern may have quotes with spaces and equals signs."""
    assert ("public.t.c", "hash") == (parse_entry("public.t.c")[0], parse_entry("public.t.c")[1].name)
    assert 'public."a = b".c?' == parse_entry('public."a = b".c? = partial( 12 )')[0]
    assert 12 == parse_entry('public."a = b".c? = partial( 12 )')[1].kept
    assert "x=y" == parse_entry("x=y")[0]


@pytest.mark.parametrize(
    "method", ["", "sha1", "partial", "partial(0)", "partial(-1)", "constant", "Hash", "null()"]
)
def test_unknown_methods(method):
    """An unknown method is an error that names the pattern and the methods."""
    with pytest.raises(
        ConfigurationError, match=r"mask: 'public\.t\.c' has an unknown method: expected hash, partial"
    ):
        Selection(mask={"public.t.c": method}, secret="s")


def test_keys_that_methods_need():
    """Each method needs its own key, and no other; a short encryption key is refused."""
    for method in ("partial(4)", "constant(x)", "null"):
        assert Selection(mask={"a.b.c": method}).mask
    for method in ("hash", "format"):
        with pytest.raises(ConfigurationError, match="mask needs a secret"):
            Selection(mask={"a.b.c": method}, encryption_key=KEY)
    for key in (None, "short"):
        with pytest.raises(
            ConfigurationError, match="encryption_key is missing or has fewer than 32 characters"
        ):
            Selection(mask={"a.b.c": "encrypt"}, secret="s", encryption_key=key)


def test_a_selection_with_methods_is_a_value():
    """It can be compared, hashed and pickled; its text has no keys."""
    one = selection("encrypt")
    again = pickle.loads(pickle.dumps(one))
    assert one == again
    assert hash(one) == hash(again)
    assert next(iter(again.masks.values()))(b"x") == function("encrypt")(b"x")
    assert KEY not in repr(one)
    assert (
        Selection(mask={"a.b.c": "hash"}, secret="s").masks.keys()
        == Selection(mask=("a.b.c",), secret="s").masks.keys()
    )


def renamed(chosen: Selection) -> list[str]:
    """Return the last column of two descriptions, before and after the rename of ``ssn`` to ``ssn_end``; its number proves the rename."""
    described = []
    filtered = StreamFilter(chosen)
    for name in ("ssn", "ssn_end"):
        stream = Stream()
        stream.transaction(
            stream.table("t", column("id", INT4, key=True), column(name)).insert("1", "123456789")
        )
        (part,) = stream.slices()
        relation = part.changes[0].layout.relation
        relation.attributes.update({"id": Attribute(1), name: Attribute(2)})
        (found,) = filtered.apply(part).changes
        described.append(found.new[name])
    return described


@pytest.mark.parametrize("former", ["hash", "constant(x)", "partial(2)"])
def test_a_rename_does_not_show_more(former):
    """A column that is renamed, and would be masked by a method that shows a part of it, stops the sink until the patterns decide."""
    patterns = {"public.t.ssn?": former, "*.*.ssn_end?": "partial(4)"}
    with pytest.raises(
        PermanentError,
        match=r"which the selection hides by another method, was renamed to public\.t\.ssn_end",
    ):
        renamed(Selection(mask=patterns, secret="s"))
    assert renamed(Selection(mask=patterns | {"*.*.ssn_end?": "hash"}, secret="s"))
    assert renamed(Selection(mask=patterns | {"*.*.ssn_end?": former}, secret="s"))


@pytest.mark.parametrize("text", ["a\0", "\ud800", "a\udfffb"])
def test_constants_that_are_no_text(text):
    """A constant that PostgreSQL cannot store as a text is refused at once, not at the first row; the error does not repeat it."""
    with pytest.raises(
        ConfigurationError, match=r"mask: the constant of 'public\.t\.c' has a character"
    ) as raised:
        Selection(mask={"public.t.c": f"constant({text})"})
    assert text not in str(raised.value)


@pytest.mark.parametrize(
    "entry", ["a.b.c=null", "a.b.c= partial(4)", 'a."x y".c?=constant(a = b)', "a.b.c=hash"]
)
def test_entries_without_a_space(entry):
    """Such an entry would be the name of a column with an equals sign, so the error says what is missing. Quotes make it a name."""
    with pytest.raises(ConfigurationError, match="needs a space before the equals sign"):
        Selection(mask=(entry,), secret="s")
    assert Selection(mask=('a.b."c=null"',), secret="s").mask


def test_a_selection_keeps_its_functions():
    """The function of a method is made once for a selection."""
    chosen = selection("encrypt")
    assert chosen.masks is chosen.masks
