"""Look-ups of the columns of described tables in the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiorepl.errors import ConnectionFailed, ServerError
from aiorepl.loggers import logger
from aiorepl.pgoutput.relations import Attribute, Column, Relation
from aiorepl.retry import may_pass
from aiorepl.source.catalog.attributes import CatalogColumns, attributes, left_out, rewritten_since
from aiorepl.source.source import Source

_log = logger("aiorepl.session")

_ATTEMPTS: Final = 5
"""How often a look-up that fails is tried, with a reconnect before each, until attributes stay unknown."""


@dataclass(frozen=True, slots=True)
class _Described:
    """A table's last description, and the result of its look-up.

    :param hidden: the numbers of the columns that are missing in this description, or were in an earlier one.
    """

    columns: tuple[Column, ...]
    attributes: dict[str, Attribute]
    table: CatalogColumns
    hidden: set[int]


class ColumnLookups:
    """Looks the columns of described tables up in the catalog, and sets ``Relation.attributes``.

    Every description is looked up, even if its columns are unchanged: the server describes a table again after it was altered,
    and a column may have been dropped and created again. Descriptions that arrive together take one query.

    :param reconnects: whether the caller reconnects after an error that may pass.
    """

    def __init__(self, source: Source, *, reconnects: bool) -> None:
        self._source = source
        self._attempts = _ATTEMPTS if reconnects else 1
        self._known: dict[int, _Described] = {}
        self._since: int | None = None
        # Look-ups that have failed since the last one that succeeded.
        self._failures = 0

    def begin(self, since: int | None) -> None:
        """Set the first transaction that may have altered a table after the slot's confirmed position. Later calls change
        nothing.
        """
        if self._since is None:
            self._since = since

    async def describe(self, described: Sequence[tuple[Relation, int]]) -> None:
        """Set the attributes of relations; each comes with the xid of the transaction in which it was described.

        An error that may pass is raised, so that the look-up is repeated after a reconnect. If it does not pass, or the server
        refuses the query for good, the attributes stay unknown.

        :raises ConnectionFailed, ConnectionLost, ServerError: the look-up failed, and may succeed after a reconnect.
        """
        try:
            tables = await self._source.look_up_columns(sorted({relation.oid for relation, _ in described}))
        except (ServerError, ConnectionFailed) as error:
            self._failures += 1
            # A description without attributes stays in a journal for good, and a mask may not be applicable to it.
            if may_pass(error) and self._failures < self._attempts:
                raise
            # The stream works without this second connection, which the role's connection limit may refuse at any time.
            _log.warning("columns cannot be looked up, so renames and defaults are unknown: %s", error)
            return
        self._failures = 0
        # If one read has several descriptions of a table, each is compared with the look-up before this read.
        previous = {oid: self._known[oid] for oid in tables if oid in self._known}
        for relation, xid in described:
            table = tables.get(relation.oid)
            if table is not None:
                self._add(relation, xid, table, previous.get(relation.oid))

    def _add(self, relation: Relation, xid: int, table: CatalogColumns, looked_up: _Described | None) -> None:
        previous = None if looked_up is None else looked_up.table
        hidden = set() if looked_up is None else looked_up.hidden
        relation.attributes.update(attributes(relation, xid, table, previous, hidden))
        before = self._known.get(relation.oid)
        if before is None:
            _warn(relation, self._rewritten(relation, table))
        elif before.columns != relation.columns:
            rewritten = previous is not None and table.file != previous.file
            _warn(relation, _unknown(relation, before, rewritten=rewritten))
        # The next look-up needs only the number of the last column.
        kept = replace(table, columns=table.columns[-1:])
        self._known[relation.oid] = _Described(
            relation.columns, relation.attributes, kept, hidden | left_out(relation, xid, table)
        )

    def _rewritten(self, relation: Relation, table: CatalogColumns) -> list[str]:
        """Return the columns with unknown values in older rows, for a table's first description since the start."""
        return [] if self._since is None else rewritten_since(relation.attributes, table, self._since)


def _unknown(relation: Relation, before: _Described, *, rewritten: bool) -> list[str]:
    """Return the columns with values in existing rows that neither the stream nor the catalog has."""
    known = {column.name: column for column in before.columns}
    numbers = {attribute.number for attribute in before.attributes.values()}
    unknown = [
        name
        for name in relation.names
        if name not in known
        and (
            (found := relation.attributes.get(name)) is None
            or not (found.missing_known or found.number in numbers)
        )
    ]
    if rewritten:
        unknown += [
            column.name
            for column in relation.columns
            if column.name in known and known[column.name].type_oid != column.type_oid
        ]
    return unknown


def _warn(relation: Relation, unknown: Sequence[str]) -> None:
    if unknown:
        _log.warning(
            "%s was altered, and the values of these columns in its existing rows are not in the stream: %s. ALTER TABLE rewrote "
            "the table, which writes no changes of rows, or the columns were not published before. If the rows are wanted with "
            "these values, read the table again with a new snapshot",
            relation,
            ", ".join(unknown),
        )
