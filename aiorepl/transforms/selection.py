"""Which part of the stream a sink gets, and in what form: tables, kinds of change, columns left out or masked. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from aiorepl.errors import ConfigurationError
from aiorepl.secret import Secret
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.transforms.patterns import Patterns, written
from aiorepl.transforms.table_selection import Rules, look

KINDS: Final = ("insert", "update", "delete", "truncate", "message")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a sink gets; everything, as it is, unless said otherwise.

    Patterns are written ``schema.table`` or ``schema.table.column``, with ``*`` for any run of characters within a part;
    a name with dots, quotes or spaces goes in double quotes: ``"my.schema"."table"``. Names are as in the catalog, lower
    case unless they were quoted when they were made. Each pattern has to match a table or column that is published when the
    pipeline starts; one that may match nothing ends with ``?``: ``public.customers.email?``.

    The name of a partitioned table, or of a table that others inherit from, means its partitions and children as well. The
    catalog is asked for them, for PostgreSQL names partitions by their own names unless the publication has
    ``publish_via_partition_root``. A partition that was detached before the catalog was asked goes by its own name.

    Where names change, the sink stops rather than guess: when a column that is dropped or masked is gone and another one is
    new, and when a table has another name under which it would be selected or hidden otherwise. The error names the patterns
    that settle it.

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
    :param keep: columns that are neither left out nor masked, whatever the patterns say, and that are no such column under
        another name.
    :param secret: the key of the masks; keep it for as long as masks have to agree. Kept as a ``Secret``; a pickled
        selection has it, for another process masks with the same key.
    :raises ConfigurationError: for an unknown kind, a malformed pattern, or masks without a secret.
    """

    tables: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    secret: str | Secret[str] | None = None
    keep: tuple[str, ...] = ()
    _rules: Rules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in ("tables", "kinds", "drop", "mask", "keep"):
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
        rules = Rules(
            Patterns("tables", self.tables, 2, exclusions=True),
            Patterns("drop", self.drop, 3),
            Patterns("mask", self.mask, 3),
            Patterns("keep", self.keep, 3),
        )
        object.__setattr__(self, "_rules", rules)

    def __reduce__(self) -> tuple[object, ...]:
        # The pickle contains the key, because another process must mask with the same one.
        secret = self.secret.reveal() if isinstance(self.secret, Secret) else self.secret
        return Selection, (self.tables, self.kinds, self.drop, self.mask, secret, self.keep)

    @property
    def rules(self) -> Rules:
        """Its patterns."""
        return self._rules

    def mistakes(self, catalog: TableCatalog) -> list[str]:
        """The errors of the selection for these tables: patterns that match nothing."""
        tables = [table.names for table in catalog]
        columns = [(*table.names, column) for table in catalog for column in table.columns]
        found = []
        for kind, patterns, names in (
            ("table", self._rules.tables, tables),
            ("column", self._rules.drop, columns),
            ("column", self._rules.mask, columns),
            ("column", self._rules.keep, columns),
        ):
            found += [
                f"{patterns.option}: {pattern.text!r} matches no {kind} of the publication's tables: correct it, or end it "
                "with ? if it may match nothing"
                for pattern in patterns.all
                if not pattern.optional and not any(map(pattern.match, names))
            ]
        return found

    def inherited(self, catalog: TableCatalog) -> list[str]:
        """The tables whose names select or hide anything in their partitions and children."""
        found: dict[str, None] = {}
        for table in catalog:
            own, ancestors = look(self._rules, (table.names,), table.columns), catalog.ancestors(table.oid)
            for ancestor in ancestors:
                other = look(self._rules, (table.names, ancestor), table.columns)
                if (other.wanted, other.actions) != (own.wanted, own.actions):
                    found[written(ancestor)] = None
        return list(found)


def _words(option: str, given: Any) -> tuple[str, ...]:
    # Not any sequence: a lone string is one too, of its letters.
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise ConfigurationError(f'{option} is a list of strings: write ["…"]')
    return tuple(given)
