"""Which part of the stream a sink gets, and in what form: tables, kinds of change, columns left out or masked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final, overload

from aiorepl.delivery.masking import Fate, Rewriting, truncation
from aiorepl.delivery.patterns import Patterns
from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.relations import Relation
from aiorepl.secret import Secret
from aiorepl.transactions.changes import Change, RowChange, Truncate
from aiorepl.transactions.pending import OVERHEAD
from aiorepl.transactions.transaction import Slice

KINDS: Final = ("insert", "update", "delete", "truncate", "message")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a sink gets; everything, as it is, unless said otherwise.

    Patterns are written ``schema.table`` or ``schema.table.column``, with ``*`` for any run of characters within a part;
    a name with dots, quotes or spaces goes in double quotes: ``"my.schema"."table"``. Names are as in the catalog, lower
    case unless they were quoted when they were made.

    What is left goes through as it came: the same transactions, ends and ordinals, so that a change is the same event
    for every sink. An update that changed nothing but dropped columns still comes.

    A sink that tells rows apart by their key should get the key whole. Masked, a key still identifies. If a part of it
    is dropped, ``key`` is the rest, which may be the same for several rows; if all of it is, ``key`` is ``None``, as of
    a table without one, and the ``old`` row of what was sent by key is empty.

    Masking is pseudonymisation: who has the secret can try values until one fits. Equal means equal as PostgreSQL
    prints it (numeric 1.0 and 1.00 differ), in whatever column or table.

    :param tables: the tables that are wanted: ``public.orders``, ``public.*``, ``*.audit_*``. One that begins with ``!``
        excludes, wherever it stands. Without any that includes, all others are wanted. Logical decoding messages belong
        to no table: ``kinds`` decides over them.
    :param kinds: of insert, update, delete, truncate, message, those that are wanted; all, if none is given.
    :param drop: columns that are left out: ``public.customers.email``, ``*.*.password``.
    :param mask: columns that become text, the HMAC-SHA-256 of their value in hexadecimal: equal values stay equal, NULL
        stays NULL, and what was not sent stays ``UNCHANGED``. A column that is dropped as well is dropped.
    :param secret: the key of the masks; keep it for as long as masks have to agree. Kept as a ``Secret``; a pickled
        selection has it, for another process masks with the same key.
    :raises ConfigurationError: for an unknown kind, a malformed pattern, or masks without a secret.
    """

    tables: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    secret: str | Secret[str] | None = None
    _sieve: _Sieve = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in ("tables", "kinds", "drop", "mask"):
            object.__setattr__(self, option, _words(option, getattr(self, option)))
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigurationError(f"kinds: {kind!r} does not exist: they are {', '.join(KINDS)}")
        secret = self.secret.reveal() if isinstance(self.secret, Secret) else self.secret
        if secret is not None and not isinstance(secret, str):
            raise ConfigurationError("secret is a string: write it in quotes")
        object.__setattr__(self, "secret", Secret(secret) if secret else None)
        if self.mask and not self.secret:
            raise ConfigurationError(
                "mask needs a secret, the key of its hashes: give a long random one, and keep it"
            )
        object.__setattr__(self, "_sieve", _Sieve(self))

    def __reduce__(self) -> tuple[object, ...]:
        # Another process masks with the same key, so a pickle has it.
        secret = self.secret.reveal() if isinstance(self.secret, Secret) else self.secret
        return Selection, (self.tables, self.kinds, self.drop, self.mask, secret)

    def apply(self, part: Slice) -> Slice:
        """The slice as the sink gets it: the same one, when that makes no difference.

        Changes that are read from disk when they are walked stay there, and are selected then. Their slice keeps its
        ``size``, which would take a walk to tell.

        :raises DataError: when a column to be masked is not what its type says; from disk, when it is walked.
        """
        sieve, changes = self._sieve, part.changes
        if sieve.open:
            return part
        if not isinstance(changes, (list, tuple)):
            return replace(part, changes=SelectedChanges(changes, sieve))
        kept: list[Change] = []
        size, same = part.size, True
        for change in changes:
            selected = sieve.select(change)
            if selected is not change:
                same = False
                size -= _cost(change)
                if selected is None:
                    continue
                size += _cost(selected)
            kept.append(selected)
        return part if same else replace(part, changes=kept, size=max(size, 0))


class _Table:
    """What a selection makes of one relation."""

    __slots__ = ("relation", "rewriting", "wanted")

    def __init__(self, relation: Relation, wanted: bool, rewriting: Rewriting | None) -> None:
        self.relation = relation
        self.wanted = wanted
        self.rewriting = rewriting

    @property
    def target(self) -> Relation:
        return self.relation if self.rewriting is None else self.rewriting.target


class _Sieve:
    """A selection at work. Keeps a little for each table it has seen."""

    def __init__(self, selection: Selection) -> None:
        self._kinds = frozenset(selection.kinds or KINDS)
        self._tables = Patterns("tables", selection.tables, 2, exclusions=True)
        self._drop = Patterns("drop", selection.drop, 3)
        self._mask = Patterns("mask", selection.mask, 3)
        self._secret = Secret.of(selection.secret or "").reveal().encode()
        # By oid, so that what is kept does not grow as tables are described anew.
        self._known: dict[int, _Table] = {}
        self.filters = bool(self._tables) or len(self._kinds) < len(KINDS)
        self.open = not (self.filters or self._drop or self._mask)

    def wants(self, change: Change) -> bool:
        """Whether anything of the change is selected."""
        if change.kind not in self._kinds:
            return False
        if isinstance(change, RowChange):
            return self._table(change.layout.relation).wanted
        if isinstance(change, Truncate):
            return any(self._table(relation).wanted for relation in change.relations)
        return True

    def select(self, change: Change) -> Change | None:
        """The change itself, its selected form, or ``None``."""
        if change.kind not in self._kinds:
            return None
        if isinstance(change, RowChange):
            table = self._table(change.layout.relation)
            if not table.wanted:
                return None
            return change if table.rewriting is None else table.rewriting.change(change)
        if isinstance(change, Truncate):
            tables = [self._table(relation) for relation in change.relations]
            targets = tuple(table.target for table in tables if table.wanted)
            if targets == change.relations:  # relations compare by identity
                return change
            message = truncation(change.message, targets)
            return Truncate(change.transaction, change.ordinal, message) if targets else None
        return change

    def _table(self, relation: Relation) -> _Table:
        table = self._known.get(relation.oid)
        if table is None or table.relation is not relation:
            table = self._known[relation.oid] = self._look(relation)
        return table

    def _look(self, relation: Relation) -> _Table:
        schema, name = relation.schema, relation.name
        if self._tables and not self._tables.match(schema, name):
            return _Table(relation, wanted=False, rewriting=None)
        fates = [self._fate(schema, name, column) for column in relation.names]
        if all(fate is Fate.KEPT for fate in fates):
            return _Table(relation, wanted=True, rewriting=None)
        return _Table(relation, wanted=True, rewriting=Rewriting(relation, fates, self._secret))

    def _fate(self, *column: str) -> Fate:
        if self._drop.match(*column):
            return Fate.DROPPED
        return Fate.MASKED if self._mask.match(*column) else Fate.KEPT


class SelectedChanges(Sequence[Change]):
    """Changes that are selected each time they are walked; none is kept."""

    __slots__ = ("_count", "_sieve", "_source")

    def __init__(self, source: Sequence[Change], sieve: _Sieve) -> None:
        self._source = source
        self._sieve = sieve
        self._count = None if sieve.filters else len(source)

    def __len__(self) -> int:
        # Counting takes a walk, so it is done once, and without rewriting.
        if self._count is None:
            self._count = sum(map(self._sieve.wants, self._source))
        return self._count

    def __bool__(self) -> bool:
        return any(map(self._sieve.wants, self._source)) if self._count is None else self._count > 0

    def __iter__(self) -> Iterator[Change]:
        for change in self._source:
            selected = self._sieve.select(change)
            if selected is not None:
                yield selected

    @overload
    def __getitem__(self, place: int) -> Change: ...
    @overload
    def __getitem__(self, place: slice) -> list[Change]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, int) and place >= 0:
            for change in islice(self, place, None):
                return change
            raise IndexError("there are not so many changes")
        return list(self)[place]

    def __repr__(self) -> str:
        return "<selected changes>"


def _words(option: str, given: Any) -> tuple[str, ...]:
    # Not any sequence: a lone string is one too, of its letters.
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise ConfigurationError(f'{option} is a list of strings: write ["…"]')
    return tuple(given)


def _cost(change: Any) -> int:
    """What the change counts for in the size of its slice."""
    return len(change.message.payload) + OVERHEAD
