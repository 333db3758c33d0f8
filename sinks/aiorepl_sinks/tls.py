"""TLS for sinks whose client takes an ``ssl.SSLContext``: makes the context, explains failed handshakes."""

from __future__ import annotations

import os
import re
import ssl
from typing import Final

from aiorepl import ConfigurationError, PermanentError, TransientError

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_NAME_MISMATCH: Final = (62, 64)
# Alerts about the client's certificate. Without one, the server's alert depends on the version of TLS.
_CLIENT_CERTIFICATE: Final = re.compile(r"ALERT_.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")


def context(
    sink: str,
    ca: str | os.PathLike[str] | None,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    key_password: str | None,
) -> ssl.SSLContext:
    """Make a context that verifies the server's certificate and name.

    :param sink: the type of the sink, for error messages.
    :param ca: a PEM file with the trusted CAs; ``None`` for the system's.
    :param certificate: a PEM file with the client's certificate.
    :param key: a PEM file with its private key, if ``certificate`` does not contain it.
    :param key_password: decrypts the private key.
    :raises ConfigurationError: if a file is missing or invalid.
    """
    try:
        made = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise ConfigurationError(f"{sink}: ca {ca} holds no certificate in PEM form") from None
    except OSError as error:
        raise ConfigurationError(f"{sink}: ca {ca} cannot be read: {error.strerror}") from None
    if certificate is None:
        if key is not None:
            raise ConfigurationError(f"{sink}: key needs certificate: set both")
        return made
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        made.load_cert_chain(certificate, key, key_password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"{sink}: key does not belong to certificate") from None
        raise ConfigurationError(
            f"{sink}: certificate and key are not both in PEM form, or key_password does not decrypt the key"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{sink}: certificate or key cannot be read: {error.strerror}") from None
    return made


def translate(sink: str, error: BaseException) -> PermanentError | TransientError | None:
    """Translate a failed TLS handshake, which clients wrap in their own errors; ``None`` for another error."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        mismatch = found.verify_code in _NAME_MISMATCH
        advice = "use the server's name from its certificate" if mismatch else "see the option ca"
        return PermanentError(
            f"{sink}: the server's certificate is invalid: {found.verify_message.rstrip('.')}: {advice}"
        )
    if _CLIENT_CERTIFICATE.search(found.reason or ""):
        return PermanentError(
            f"{sink}: the server requires a client certificate that it trusts: see the options certificate and key"
        )
    if found.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return TransientError(f"{sink}: the server does not speak TLS on this port")
    return TransientError(f"{sink}: TLS failed: {found.reason or type(found).__name__}")
