"""``redis``: adds one entry for each change to a Redis stream.

The entry ID is the change's identity, ``<commit LSN as a number>-<ordinal>``, so IDs grow in commit order. The fields are
``key`` (the row's key, if it has one) and ``value`` (the event). If schema changes are selected, ``schema`` precedes them: the
event of a schema change since the table's previous row; further ones are ``schema-2``, ``schema-3`` …. For formats that make
several events of one change (debezium, wal2json) each ordinal has 65536 numbers. A replayed dead letter follows all other
entries, under an ID right before the position.

Guarantee: exactly once, in streams that have no other writers. One Lua script adds the entries and moves the position, which
is kept in a hash in the same database, so Redis stores both or neither. A script that finds another position than expected,
because an answer was lost, adds nothing. The first entries of a transaction that is larger than a batch are visible before
its last ones; each appears once.

Durability depends on Redis: with ``appendfsync always`` an entry is on the disk of one server, with ``everysec`` all but the
last second is, and ``replicas`` waits until that many replicas have it. If Redis has lost acknowledged entries, the position
it returns shows that at the next start, and the sink refuses to continue over the gap.

See ``docs/reference/sinks/redis.md``.
"""

from aiorepl_sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
