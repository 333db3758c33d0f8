"""The attributes of a composite type in the catalog, and the descriptions that its values had at the time of a transaction. Pure.

``pg_attribute`` keeps dropped attributes, and its system columns tell which transaction, and which command of that transaction,
changed an attribute last. So it is known whether the type was altered in or after a transaction, and by how many attributes, but
not which names an altered or dropped attribute had. A value has the number of its attributes. An earlier description is used
only where this number shows that no other description is possible.

WAL does not have the numbers of commands: a row that was replayed, after a crash or on a standby that was promoted, has the command 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from aiorepl.source.catalog.snapshots import SEEN, precedes

Fields = tuple[tuple[str, int], ...]

# cmin is the command that wrote the row, unless another transaction tried to change the row: then xmax is set.
# An xid before relfrozenxid may have been assigned again.
# The first columns are those of SEEN, and the LSN up to which the server has replayed WAL since it was started; 0/0: none.
QUERY: Final = f"""
SELECT {SEEN}, COALESCE(pg_catalog.pg_last_wal_replay_lsn(), '0/0')::pg_catalog.text,
       t.oid, a.attnum, a.attname::pg_catalog.text, a.atttypid, a.attisdropped, a.xmin::text::bigint,
       CASE WHEN a.xmax = '0' THEN a.cmin::text::bigint END, c.xmin::text::bigint, c.cmin::text::bigint,
       t.xmin::text::bigint, t.cmin::text::bigint,
       (SELECT f.relfrozenxid::text::bigint FROM pg_catalog.pg_class f
         WHERE f.oid = 'pg_catalog.pg_attribute'::pg_catalog.regclass),
       pg_catalog.txid_snapshot_xmax(pg_catalog.txid_current_snapshot())
  FROM pg_catalog.pg_type t JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
       JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
 WHERE t.oid = ANY ($1) AND a.attnum > 0 ORDER BY t.oid, a.attnum
"""
_FIRST_COMMAND: Final = 0


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of ``pg_attribute``.

    :param xid: the transaction that wrote it; ``None`` if it was frozen.
    :param command: the command of that transaction; ``None`` if it is not known.
    """

    number: int
    name: str
    type_oid: int
    dropped: bool
    xid: int | None
    command: int | None


@dataclass(frozen=True, slots=True)
class CompositeAttributes:
    """The attributes of a composite type in the catalog, in the order of their numbers, dropped ones included.

    :param counted: the transaction and the command that changed the number of attributes last, as ADD ATTRIBUTE does.
    """

    attributes: tuple[Attribute, ...]
    counted: tuple[int, int]

    @property
    def fields(self) -> Fields:
        """The names and types of the attributes, without dropped ones."""
        return tuple((each.name, each.type_oid) for each in self.attributes if not each.dropped)

    def altered_by(self, xid: int) -> bool:
        """Whether that transaction changed an attribute after another command, and after it may have written rows."""
        return any(each.xid == xid and each.command != _FIRST_COMMAND for each in self.attributes)

    def altered_since(self, xid: int) -> bool:
        """Whether an attribute was changed in or after that transaction."""
        return any(_pending(each, xid) for each in self.attributes)

    @property
    def only_grew(self) -> bool:
        """Whether the last attribute was added at a known time, and none was dropped at one.

        Then a value with fewer attributes is of a transaction that overlapped the addition, whichever xid the transaction has.
        """
        live = [each for each in self.attributes if not each.dropped]
        dropped = any(each.dropped and each.xid is not None for each in self.attributes)
        return bool(live) and live[-1].xid is not None and not dropped

    def replayed(self) -> CompositeAttributes:
        """Return the attributes as far as they are known if their rows were replayed from WAL."""
        return replace(
            self,
            attributes=tuple(
                replace(each, command=None if each.command == _FIRST_COMMAND else each.command)
                for each in self.attributes
            ),
        )

    @property
    def xids(self) -> set[int]:
        """The transactions that created or changed attributes."""
        return {each.xid for each in self.attributes if each.xid is not None}

    def variants(self, xid: int, before: CompositeAttributes | None = None) -> dict[int, Fields]:
        """Return the descriptions that values of a transaction can have, by the number of their attributes.

        A value with another number of attributes has an unknown description.

        :param before: the attributes before the alteration, if they are known.
        """
        known = {} if before is None else {each.number: each for each in before.attributes}
        live = [each for each in self.attributes if not each.dropped]
        pending = [
            each
            for each in self.attributes
            if _pending(each, xid) and not _same(each, known.get(each.number))
        ]
        dropped = sum(each.dropped for each in pending)
        added, only_grew = 0, self.only_grew
        for each in reversed(live):
            if not (each in pending or (only_grew and each.xid is not None)) or each.number in known:
                break
            added += 1
        count = len(live)
        fields = self.fields
        found: dict[int, Fields] = {}
        if not (dropped and added) and self._is_final(live, pending, xid, known):
            found[count] = fields
        if not dropped:
            for size in range(count - added, count):
                if not any(
                    each in pending and each.xid == xid and (before is None or each.number in known)
                    for each in live[:size]
                ):
                    found[size] = fields[:size]
        elif before is not None and not added and len(pending) == dropped:
            # Attributes were only dropped.
            found[len(before.fields)] = before.fields
        return found

    def _is_final(
        self,
        live: Sequence[Attribute],
        pending: Sequence[Attribute],
        xid: int,
        known: Mapping[int, Attribute],
    ) -> bool:
        """Whether no value that is older than the last alteration has the type's present number of attributes."""
        own = [each for each in live if each in pending and each.xid == xid]
        if not own:
            return True
        last = live[-1]
        if last not in pending or last.number in known or (last.xid, last.command) != self.counted:
            return False
        # The alterations must precede the command that gave values their present number of attributes.
        return last.xid != xid or all(
            each.command is not None and last.command is not None and each.command <= last.command
            for each in own
        )


def parse(rows: Iterable[Sequence[Any]]) -> dict[int, CompositeAttributes]:
    """Parse the rows of ``QUERY`` without the first three columns, by the oids of the types."""
    found: dict[int, tuple[list[Attribute], tuple[int, int]]] = {}
    for (
        oid,
        number,
        name,
        type_oid,
        dropped,
        xid,
        command,
        *counted,
        created,
        creation,
        frozen,
        unassigned,
    ) in rows:
        unfrozen = not precedes(xid, frozen) and precedes(xid, unassigned)
        # The type did not have values before it was created.
        is_creation = not dropped and (xid, command) == (created, creation)
        attribute = Attribute(
            number, name, type_oid, dropped, xid if unfrozen and not is_creation else None, command
        )
        attributes, _ = found.setdefault(oid, ([], (counted[0], counted[1])))
        attributes.append(attribute)
    return {oid: CompositeAttributes(tuple(each), counted) for oid, (each, counted) in found.items()}


def _pending(attribute: Attribute, xid: int) -> bool:
    """Whether a transaction may have written values before the attribute was changed."""
    if attribute.xid is None:
        return False
    return precedes(xid, attribute.xid) or (attribute.xid == xid and attribute.command != _FIRST_COMMAND)


def _same(now: Attribute, before: Attribute | None) -> bool:
    """Whether the row of an attribute was changed, but neither its name nor its type."""
    return before is not None and (now.name, now.type_oid, now.dropped) == (
        before.name,
        before.type_oid,
        before.dropped,
    )
