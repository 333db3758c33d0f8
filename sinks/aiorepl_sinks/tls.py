"""TLS for sinks whose client takes a context: whom we believe, who we are, and what it means when one of the two fails."""

from __future__ import annotations

import re
import ssl
from typing import Final

from aiorepl import ConfigurationError, PermanentError, TransientError

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_OTHER_NAME: Final = (62, 64)
# Alerts about our certificate; what servers say to a missing one depends on the version of TLS.
_NOT_US: Final = re.compile(r"ALERT_.*(CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|HANDSHAKE_FAILURE)")


def context(
    sink: str, ca: str | None, certificate: str | None, key: str | None, key_password: str | None
) -> ssl.SSLContext:
    """Believe the system's authorities, or those in ``ca`` and no others, and show ``certificate`` to who asks.

    :raises ConfigurationError: one of the files is not what it should be.
    """
    try:
        made = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise ConfigurationError(f"{sink}: ca {ca} holds no certificate in PEM form") from None
    except OSError as error:
        raise ConfigurationError(f"{sink}: ca {ca} cannot be read: {error.strerror}") from None
    if certificate is None:
        if key is not None:
            raise ConfigurationError(f"{sink}: key is of no use without certificate")
        return made
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        made.load_cert_chain(certificate, key, key_password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"{sink}: key is another's than that of certificate") from None
        raise ConfigurationError(
            f"{sink}: certificate and key are not both in PEM form, or key_password does not open the key"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{sink}: certificate or key cannot be read: {error.strerror}") from None
    return made


def problem(sink: str, error: BaseException) -> PermanentError | TransientError | None:
    """What the engine is told, if TLS is why a connection failed; clients wrap it in errors of their own."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if found is None:
        return None
    if isinstance(found, ssl.SSLCertVerificationError):
        other_name = found.verify_code in _OTHER_NAME
        advice = "call the server as its certificate does" if other_name else "see the option ca"
        return PermanentError(
            f"{sink}: the server's certificate: {found.verify_message.rstrip('.')}: {advice}"
        )
    if _NOT_US.search(found.reason or ""):
        return PermanentError(
            f"{sink}: the server wants a certificate of ours that it knows: see the options certificate and key"
        )
    if found.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return TransientError(f"{sink}: the server does not speak TLS there")
    return TransientError(f"{sink}: TLS failed: {found.reason or type(found).__name__}")
