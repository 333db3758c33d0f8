"""Encrypted values that were altered, whatever their base64 form."""

from __future__ import annotations

import pytest

from aiorepl import DataError, decryptor
from aiorepl.transforms.encryption import encryptor

KEY = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("text", ["", "a", "ab", "hello"])
def test_a_value_is_decrypted_in_the_form_of_the_encryption_only(text: str) -> None:
    value = encryptor(KEY)(text.encode()).decode()
    decrypt = decryptor([KEY])
    assert decrypt(value) == text
    head, last = value[:-1], value[-1]
    altered = [value + "=", value + "!!", value + "\n", head + "!" + last, head + " " + last]
    # The last character may contain bits that base64 does not use.
    altered += [head + chr(ord(last) + 1), head + chr(ord(last) - 1)]
    for each in altered:
        with pytest.raises(DataError, match="damaged, or was altered"):
            decrypt(each)
