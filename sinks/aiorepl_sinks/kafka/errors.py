"""What the errors of Kafka's client mean to the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from aiokafka import errors as kafka

from aiorepl import PermanentError, TransientError
from aiorepl_sinks import tls

# The producer cannot go on, a new one can.
_NEW_PRODUCER: Final = (
    *(kafka.OutOfOrderSequenceNumber, kafka.InvalidProducerIdMapping, kafka.InvalidTxnState),
    *(kafka.UnknownError, kafka.ProducerClosed, kafka.KafkaConnectionError, kafka.IllegalOperation),
)
_REFUSALS: Final = (
    *(kafka.AuthenticationFailedError, kafka.SaslAuthenticationFailed, kafka.UnsupportedSaslMechanismError),
    *(kafka.IllegalSaslStateError, kafka.ClusterAuthorizationFailedError),
)


@contextlib.contextmanager
def told(topic: str | None = None) -> Iterator[None]:
    """Tell the engine what the client raises."""
    try:
        yield
    except (kafka.KafkaError, OSError, TimeoutError) as error:
        raise problem(error, topic) from None


@contextlib.contextmanager
def not_hung_up(protocol: str) -> Iterator[None]:
    """Say what it may mean when a broker that is there wants nothing of us."""
    try:
        yield
    except (ConnectionResetError, kafka.KafkaConnectionError) as error:
        if tls.problem("kafka", error) is not None:
            raise
        raise TransientError(
            f"kafka: the broker hung up: it is starting or stopping, or its listener is not of security_protocol {protocol}, or "
            "wants a certificate that it knows: see the options certificate and key"
        ) from None


def problem(error: BaseException, topic: str | None = None) -> PermanentError | TransientError:
    """What the engine is told."""
    if isinstance(error, (PermanentError, TransientError)):
        return error
    name = type(error).__name__
    if isinstance(error, _REFUSALS):
        return PermanentError(
            "kafka: the broker does not accept the user, the password or the SASL mechanism"
        )
    if (of_tls := tls.problem("kafka", error)) is not None:
        return of_tls
    if isinstance(error, (kafka.TopicAuthorizationFailedError, kafka.TransactionalIdAuthorizationFailed)):
        return PermanentError(
            f"kafka: {name}: the user may not write to a topic, or use the transactional id"
        )
    if isinstance(error, (kafka.ProducerFenced, kafka.InvalidProducerEpoch)):
        return PermanentError(
            "kafka: another producer has our transactional id, or a transaction took longer than transaction_timeout: "
            "start again, with one process a transactional id"
        )
    if isinstance(error, kafka.UnknownTopicOrPartitionError):
        return PermanentError(
            f"kafka: there is no topic {topic!r}, and the brokers do not create it (auto.create.topics.enable): create it"
        )
    if isinstance(error, (OSError, TimeoutError, *_NEW_PRODUCER)) or type(error) is kafka.KafkaError:
        return TransientError(f"kafka: {name}")
    if isinstance(error, kafka.KafkaError) and error.retriable:
        return TransientError(f"kafka: {name}")
    return PermanentError(f"kafka: {name}")
