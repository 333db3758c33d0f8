"""``postgres``: applies changes to the tables of another PostgreSQL server, exactly once.

The position is kept on the target and moves in the transaction that applies the changes. Whatever is killed, lost or sent
twice, the target has every transaction of the source once, whole and in order. The transactions of one batch become visible
together.

See ``docs/reference/sinks/postgres.md``.
"""

from aiorepl_sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
