"""Describes the lock on the target that a statement of the sink waits for.

With two-phase commit, the sink and an ALTER TABLE can wait for each other for ever: a prepared transaction of the sink holds a lock
of the table, the ALTER TABLE waits for it, the sink's next statement waits behind the ALTER TABLE, and the COMMIT PREPARED comes
later in the stream. PostgreSQL sees no deadlock in that, because a prepared transaction has no process that waits.
"""

from __future__ import annotations

from typing import Any, Final

from aiorepl.waits import SESSION, session

# The processes that the sink's backend waits for, and the prepared transactions that these wait for; pid 0 is a prepared transaction.
_BLOCKING: Final = f"""
SELECT b.pid AS blocking, {SESSION}, (pg_catalog.now() - a.xact_start)::interval(0)::text AS age,
       pg_catalog.format('%s', w.relation::regclass) AS name, w.relation,
       ARRAY(SELECT p.gid FROM pg_catalog.pg_locks q
               JOIN pg_catalog.pg_locks h ON h.pid IS NULL AND h.granted AND h.locktype = q.locktype
                AND h.database IS NOT DISTINCT FROM q.database AND h.relation IS NOT DISTINCT FROM q.relation
                AND h.transactionid IS NOT DISTINCT FROM q.transactionid
               JOIN pg_catalog.pg_locks x ON x.pid IS NULL AND x.granted AND x.locktype = 'transactionid'
                AND x.virtualtransaction = h.virtualtransaction
               JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid
              WHERE q.pid = coalesce(nullif(b.pid, 0), $1) AND NOT q.granted
                AND 0 = ANY (pg_catalog.pg_blocking_pids(q.pid)) ORDER BY p.gid) AS prepared
  FROM (SELECT DISTINCT pid FROM unnest(pg_catalog.pg_blocking_pids($1)) AS pid) AS b
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
  LEFT JOIN pg_catalog.pg_locks w ON w.pid = $1 AND NOT w.granted
 ORDER BY b.pid
"""


async def blocking(connection: Any, backend: int, own: str) -> str | None:
    """Return what a backend waits for, and what to do; ``None`` if it waits for no lock.

    :param connection: another connection to the target.
    :param backend: the process ID of the backend.
    :param own: the prefix of the GIDs of the sink's own prepared transactions.
    """
    rows = await connection.fetch(_BLOCKING, backend)
    if not rows:
        return None
    lock = "a lock" if rows[0]["relation"] is None else f"a lock of table {rows[0]['name']}"
    return f"{lock} on the target: {'; '.join(_described(row, own) for row in rows)}"


def _described(row: Any, own: str) -> str:
    ours = [gid for gid in row["prepared"] if gid.startswith(own)]
    prepared = ", ".join(map(repr, ours or row["prepared"]))
    if not row["blocking"]:
        if ours:
            return f"the sink's own prepared transaction {prepared} has it, which the source ends only later"
        return f"prepared transaction {prepared} has it: COMMIT PREPARED or ROLLBACK PREPARED ends it"
    if row["pid"] is None:
        return f"process {row['blocking']} comes before it"
    described, cancel = session(row), f"SELECT pg_cancel_backend({row['pid']})"
    if ours:
        return (
            f"{described}, comes before it, and waits itself for the sink's prepared transaction {prepared}, which the source ends only "
            f"later: so both wait for ever. Cancel that process ({cancel}), and let it set lock_timeout when it tries again. Do not end "
            "the prepared transaction by hand"
        )
    if row["prepared"]:
        return f"{described}, comes before it, and waits itself for prepared transaction {prepared}: end that transaction, or {cancel}"
    return f"{described}, comes before it: end its transaction, or {cancel}"
