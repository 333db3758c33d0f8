"""``nats``: publishes one message for each change to a JetStream stream.

The header ``Nats-Msg-Id`` carries the change's identity, so the stream drops repeated messages within its
``duplicate_window``. ``write`` returns once the stream has acknowledged every message. They are then as durable as the
stream's storage and replicas make them.

Order: messages are published without waiting for each other's acknowledgement, but each names its predecessor in
``Nats-Expected-Last-Msg-Id``. If the stream does not store one of them (its leader changed, or it is full), it rejects all
that follow, and the sink publishes them again in order. Other publishers may use the stream; their messages cause an
occasional repetition.

Guarantee: at least once; exactly once within the duplicate window.

See ``docs/reference/sinks/nats.md``.
"""

from aiorepl_sinks.nats.sink import NatsSink

__all__ = ["NatsSink"]
