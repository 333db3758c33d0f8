"""Encrypts the values of masked columns, and decrypts them. Pure.

The algorithm is AES-SIV (RFC 5297) without associated data: authenticated, and deterministic, so that an event that is delivered again is the
same event, and an encrypted key identifies rows. Equality and length of values remain visible.

An encrypted value has the form ``siv1:ID:DATA``. ``ID`` is the key's id, eight hexadecimal digits; ``DATA`` is the synthetic IV and the
ciphertext in URL-safe base64 without padding. The AES key is the HMAC-SHA-512 of ``aiorepl AES-SIV`` under the text of the key, and the id
is the beginning of the HMAC-SHA-512 of ``aiorepl key id``.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiorepl.errors import ConfigurationError, DataError
from aiorepl.secret import Secret

_PREFIX: Final = "siv1"
_LEAST: Final = 32
_IV: Final = 16


def encryptor(key: str) -> Callable[[Any], bytes]:
    """Return a function that encrypts a value's text.

    :raises ConfigurationError: the key is too short, or a package is missing.
    """
    name, cipher = _cipher(key)
    head, encrypt, encode = f"{_PREFIX}:{name}:".encode(), cipher.encrypt, urlsafe_b64encode
    return lambda text: head + encode(encrypt(text, None)).rstrip(b"=")


def decryptor(keys: Iterable[str | Secret[str]]) -> Callable[[str], str]:
    """Return a function that decrypts values that a selection has encrypted (``mask = {"…": "encrypt"}``).

    The function raises ``DataError`` if a text is no encrypted value, was encrypted with another key, or was altered.

    :param keys: the texts of the present key and of former keys, in any order.
    :raises ConfigurationError: a key is too short, or a package is missing.
    """
    ciphers = dict(_cipher(Secret.of(key).reveal()) for key in keys)

    def decrypt(text: str) -> str:
        prefix, _, rest = text.partition(":")
        name, _, data = rest.partition(":")
        if prefix != _PREFIX or not data:
            raise DataError("the text is no encrypted value: it does not begin with siv1:")
        if name not in ciphers:
            raise DataError(f"the value was encrypted with the key {name[:8]!r}, which is not among the keys")
        from cryptography.exceptions import InvalidTag

        try:
            raw = urlsafe_b64decode(data + "=" * (-len(data) % 4))
            # The decoder skips other characters and unused bits, and the authentication does not cover them.
            if urlsafe_b64encode(raw).rstrip(b"=") != data.encode():
                raise ValueError("not the form of the encryption")
            found: bytes = ciphers[name].decrypt(raw, None)
        except (InvalidTag, ValueError):
            raise DataError("the encrypted value is damaged, or was altered") from None
        return found.decode()

    return decrypt


def _cipher(key: str) -> tuple[str, Any]:
    """Return the id and the cipher of a key."""
    if len(key) < _LEAST:
        raise ConfigurationError(
            f"encryption_key is missing or has fewer than {_LEAST} characters: make a random one, for example with openssl rand -base64 32"
        )
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    except ModuleNotFoundError:
        raise ConfigurationError(
            "the method encrypt needs cryptography: pip install 'aiorepl[encryption]'"
        ) from None
    raw = key.encode()
    name = hmac.digest(raw, b"aiorepl key id", "sha512").hex()[:8]
    return name, AESSIV(hmac.digest(raw, b"aiorepl AES-SIV", "sha512"))
