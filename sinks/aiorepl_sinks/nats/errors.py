"""Translates the errors of NATS' client and of JetStream for the engine."""

from __future__ import annotations

from collections.abc import Sequence

import nats
from nats.js import errors as js

from aiorepl import PermanentError, TransientError
from aiorepl_sinks import tls

# JetStream's codes for rejected messages (err_code).
WRONG_LAST_ID, TOO_LARGE, OTHER_STREAM = 10070, 10054, 10060


def translate(error: Exception, stream: str, timeout: float, servers: str) -> PermanentError | TransientError:
    """Translate an error of the client, or a negative acknowledgement of the stream.

    :param stream: the stream's name.
    :param servers: hosts and ports, for the message.
    :param timeout: seconds after which an answer counts as missing.
    """
    if isinstance(error, (PermanentError, TransientError)):
        return error
    text = str(error).lower()
    # "Authorization Violation", "User Authentication Expired" and the like.
    if (
        isinstance(error, nats.errors.AuthorizationError)
        or "authorization" in text
        or "authentication" in text
    ):
        return PermanentError(
            "nats: the server does not accept the user, password, token or credentials: check these options"
        )
    if isinstance(error, js.APIError) and error.code is not None and error.code < 500:
        return PermanentError(f"nats: stream {stream!r}: {error.description} ({error.err_code})")
    if (tls_error := tls.translate("nats", error)) is not None:
        return tls_error
    if isinstance(error, nats.errors.BadSubjectError):
        return PermanentError("nats: NATS does not allow the subject of a change: see the option subject")
    if isinstance(error, (js.ServiceUnavailableError, nats.errors.NoRespondersError)):
        return TransientError(
            f"nats: JetStream at {servers} does not answer for stream {stream!r}: is it enabled on the server?"
        )
    if isinstance(error, TimeoutError):
        return TransientError(f"nats: no answer from {servers} within {timeout:g} s")
    if isinstance(error, (nats.errors.NoServersError, OSError)):
        return TransientError(f"nats: no connection to {servers}")
    return TransientError(f"nats: {type(error).__name__} ({servers})")


def subject_rejected(
    error: Exception, subject: str, stream: str, stream_subjects: Sequence[str]
) -> PermanentError | None:
    """Explain why the stream does not store messages of a subject; ``None`` if the subject is not the reason.

    :param stream_subjects: the subjects that the stream is configured for.
    """
    if isinstance(error, js.NoStreamResponseError) and not any(
        _matches(pattern, subject) for pattern in stream_subjects
    ):
        return PermanentError(
            f"nats: stream {stream!r} does not take the subject {subject!r}: add it to the stream's subjects, or change the "
            "option subject"
        )
    if isinstance(error, js.APIError) and error.err_code == OTHER_STREAM:
        return PermanentError(
            f"nats: the subject {subject!r} belongs to another stream than {stream!r}: change the option subject"
        )
    return None


def _matches(pattern: str, subject: str) -> bool:
    """Whether a subject matches a pattern with NATS' wildcards."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":  # noqa: S105 - a wildcard
            return len(tokens) > index
        if index >= len(tokens) or token not in ("*", tokens[index]):
            return False
    return len(wanted) == len(tokens)
