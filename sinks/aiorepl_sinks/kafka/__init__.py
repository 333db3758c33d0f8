"""``kafka``: produces one record for each change, keyed by its row.

Changes of one row have the same key, so they are in one partition, in order. ``write`` returns once all in-sync replicas
have acknowledged every record. The producer is idempotent and sends a partition's next record batch only after the previous
one is acknowledged, so neither its retries nor a broker's restart repeat or reorder records.

Guarantee: at least once. After a crash, unconfirmed changes are sent again; consumers recognise them by the header
``event_id``. With ``exactly_once``, records and position are written in one Kafka transaction that contains whole database
transactions: consumers with ``isolation.level=read_committed`` see each of them once and whole. The position is kept in a
compacted topic.

See ``docs/reference/sinks/kafka.md``.
"""

from aiorepl_sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
