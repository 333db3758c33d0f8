"""Translates the errors of Kafka's client for the engine."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Final

from aiokafka import errors as kafka

from aiorepl import PermanentError, TransientError
from aiorepl_sinks import tls

# After these errors the producer cannot continue, but a new producer can.
_NEW_PRODUCER: Final = (
    *(kafka.OutOfOrderSequenceNumber, kafka.InvalidProducerIdMapping, kafka.InvalidTxnState),
    *(kafka.UnknownError, kafka.ProducerClosed, kafka.KafkaConnectionError, kafka.IllegalOperation),
    *(kafka.KafkaUnavailableError, kafka.QuotaViolationError),
)
_LOGIN_FAILED: Final = (
    *(kafka.AuthenticationFailedError, kafka.SaslAuthenticationFailed, kafka.UnsupportedSaslMechanismError),
    *(kafka.IllegalSaslStateError, kafka.ClusterAuthorizationFailedError),
)


@contextlib.contextmanager
def translated(topic: str | None = None) -> Iterator[None]:
    """Translate the client's errors.

    :param topic: the topic that the calls access, for error messages.
    """
    try:
        yield
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise translate(error, topic) from None


@contextlib.contextmanager
def explain_hang_up(protocol: str) -> Iterator[None]:
    """Say why a broker may close a new connection.

    :param protocol: the option ``security_protocol``.
    """
    try:
        yield
    except (ConnectionResetError, kafka.KafkaConnectionError) as error:
        if tls.translate("kafka", error) is not None:
            raise
        raise TransientError(
            "kafka: the broker closed the connection: it is starting or stopping, its listener does not use "
            f"security_protocol {protocol}, or it requires a client certificate that it trusts: see the options certificate "
            "and key"
        ) from None


def translate(error: BaseException, topic: str | None = None) -> PermanentError | TransientError:
    """Translate an error of the client.

    :param topic: the topic that the call accessed, for the error message.
    """
    if isinstance(error, (PermanentError, TransientError)):
        return error
    name = type(error).__name__
    if isinstance(error, _LOGIN_FAILED):
        return PermanentError(
            "kafka: the broker does not accept the user, the password or the SASL mechanism: check username, password and "
            "sasl_mechanism"
        )
    if (tls_error := tls.translate("kafka", error)) is not None:
        return tls_error
    if isinstance(error, (kafka.TopicAuthorizationFailedError, kafka.TransactionalIdAuthorizationFailed)):
        return PermanentError(
            f"kafka: {name}: the user may not write to a topic, or not use the transactional.id: grant it that"
        )
    if isinstance(error, (kafka.ProducerFenced, kafka.InvalidProducerEpoch)):
        return PermanentError(
            "kafka: another producer uses the same transactional.id, or a Kafka transaction took longer than "
            "transaction_timeout: give each process its own transactional_id, and start again"
        )
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return PermanentError(
            f"kafka: topic {topic!r} does not exist, and the brokers do not create it (auto.create.topics.enable): create it"
        )
    # The client marks a KafkaTimeoutError as not retriable, because the client's own time-out for the call has passed.
    if isinstance(error, (TimeoutError, kafka.KafkaTimeoutError)):
        return TransientError("kafka: no answer in time")
    if isinstance(error, OSError) and error.errno:
        text = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno)
        return TransientError(f"kafka: no connection to a broker: {text}")
    if isinstance(error, (OSError, *_NEW_PRODUCER)) or type(error) is kafka.KafkaError:
        return TransientError(f"kafka: {name}")
    if isinstance(error, kafka.KafkaError) and error.retriable:
        return TransientError(f"kafka: {name}")
    return PermanentError(f"kafka: {name}")
