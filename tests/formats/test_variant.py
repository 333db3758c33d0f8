"""JSON as VARIANT: pyspark reads the same document, or it is refused."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorepl.formats.arrow.variant import encode

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abcü\U00010000", max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


def read(text: str):
    from pyspark.sql.variant_utils import VariantUtils

    value, metadata = encode(text)
    with localcontext(prec=50):  # pyspark makes decimals by dividing
        return exact(VariantUtils.to_python(value, metadata))


def exact(value):
    """The value with floating-point numbers as the decimals that they print as."""
    if isinstance(value, dict):
        return {key: exact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [exact(each) for each in value]
    return Decimal(repr(value)) if isinstance(value, float) else value


@settings(max_examples=50)
@given(documents)
def test_documents(document):
    """Every document of moderate numbers is read as it was written."""
    assert read(json.dumps(document)) == json.loads(json.dumps(document), parse_float=Decimal)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 5000])
def test_many_parts(count):
    """Counts, ids and offsets take as many bytes as they need."""
    document = {f"key{number:06}": [number] for number in range(count)}
    assert read(json.dumps(document)) == document
    assert read(json.dumps(list(document.values()))) == list(document.values())


@pytest.mark.parametrize(
    "text",
    ["1.50", "-0.001", "1e5", "-1e37", "0." + "0" * 37 + "1", "9" * 38, "-" + "9" * 18, "-2147483649", "1.5e300", "5e-324"],
)  # fmt: skip
def test_numbers_keep_their_digits(text):
    """Decimals up to 38 digits are decimals; others are floating-point numbers that print the same."""
    assert read(text) == Decimal(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        "1" * 39,
        "1e400",
        "1e99999999999999999999",
        "0.1" + "2" * 40,
        '"\\ud800"',
        "NaN",
        "{",
        "[" * 100_000 + "]" * 100_000,
        f'"{"x" * 2**24}"',
    ],
    ids=[
        "key_twice",
        "39_digits",
        "infinite",
        "exponent",
        "too_precise",
        "surrogate",
        "nan",
        "not_json",
        "deep",
        "large",
    ],
)
def test_refused(text):
    """A document that VARIANT cannot represent is refused, never changed."""
    assert encode(text) is None
