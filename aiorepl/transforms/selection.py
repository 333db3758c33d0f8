"""The tables, kinds of change and columns that a sink gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiorepl.checked import checked
from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.relations import Mask
from aiorepl.secret import Secret
from aiorepl.source.catalog.tables import TableCatalog
from aiorepl.transforms.methods import Method, mask_of, parse_entry
from aiorepl.transforms.patterns import Patterns, quote
from aiorepl.transforms.rules import KEPT, Rules, select_table

KINDS: Final = ("insert", "read", "update", "delete", "truncate", "message")


@checked(own=("tables", "kinds", "drop", "mask", "keep"))
@dataclass(frozen=True, slots=True)
class Selection:
    """The tables, kinds of change and columns that a sink gets. Without options, it gets everything unchanged.

    A pattern has the form ``schema.table`` or ``schema.table.column``. ``*`` matches any characters within a part; a name
    with dots, quotes or spaces goes in double quotes: ``"my.schema"."table"``. Names are those of the catalog: lower case,
    unless they were quoted when they were created. Each pattern must match a published table or column when the pipeline
    starts; a pattern that may match nothing ends with ``?``: ``public.customers.email?``.

    The name of a partitioned table, or of a parent in table inheritance, covers its partitions and children too. aiorepl
    looks them up in the catalog, because PostgreSQL sends the rows of a partition under the partition's name, unless the
    publication has ``publish_via_partition_root``. A partition that was detached still counts as one; after a restart only if
    there is a journal or ``state_dir``.

    A rename can change what the patterns mean. The sink stops if a dropped or masked column has disappeared and another one
    is new, or if a renamed table would be selected or hidden differently. The error names the patterns that resolve it.

    Everything else stays as it was: the selection keeps transactions, their end LSNs and ordinals, so a change is the same
    event for every sink. An UPDATE that changed only dropped columns is still delivered.

    A sink that identifies rows by their key should get all key columns. A masked key still identifies rows. If some key
    columns are dropped, ``key`` has the rest, which several rows may share; if all are dropped, ``key`` is ``None``, as for
    a table without a key, and an ``old`` row that has only the key is empty.

    Masking is pseudonymization: anyone who has the secret can test guessed values. Values are equal if PostgreSQL prints them
    equally (numeric 1.0 and 1.00 differ), in any column of any table. The methods of masks:

    - ``hash``: the hexadecimal HMAC-SHA-256 of the value.
    - ``partial(4)``: the last 4 characters stay, and ``*`` replaces the others. A value of fewer than 8 characters is hidden
      as a whole. For texts, integers and numeric.
    - ``constant(text)``: this text. ``null``: NULL.
    - ``format``: digits, and letters of the same case, computed from the whole value and ``secret``. ASCII separators
      stay. For texts, integers and numeric. Not reversible, and not the format-preserving encryption of a standard.
    - ``encrypt``: AES-SIV (RFC 5297), which ``decryptor`` reverses.

    A mask is text. Only ``hash`` and ``encrypt`` mask columns of the key, because other masks of different values may be equal.

    :param tables: patterns of tables: ``public.orders``, ``public.*``, ``*.audit_*``. A pattern that begins with ``!``
        excludes tables, wherever it is in the list. If all patterns exclude, all other tables are selected. Logical
        decoding messages belong to no table: see ``kinds``.
    :param kinds: the kinds of change: insert, read, update, delete, truncate, message. Empty: all. ``read`` is a row of a
        snapshot; ``insert`` selects it too, so that a sink of new rows does not lose those from before. A kind that begins
        with ``!`` is excluded, wherever it is in the list: ``("insert", "!read")``. If all are excluded, all other kinds are
        selected.
    :param drop: patterns of columns that are left out: ``public.customers.email``, ``*.*.password``.
    :param mask: patterns of columns that are masked: a list, for ``hash``, or a mapping from patterns to methods. The first
        pattern that matches a column applies. Equal values have equal masks; NULL and ``UNCHANGED`` are kept. If a column
        matches ``drop`` as well, it is dropped.
    :param keep: patterns of columns that are neither dropped nor masked, whatever the other patterns say, and that are not
        renamed columns.
    :param secret: the HMAC key of the methods ``hash`` and ``format``. Masks change with it. It is stored as a ``Secret``; a pickled
        selection contains it, because another process must mask with the same key.
    :param encryption_key: the key of the method ``encrypt``: at least 32 random characters. Stored and pickled as ``secret``.
    :raises ConfigurationError: a kind or a method is unknown, a pattern is malformed, or a method lacks its key.
    """

    tables: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    mask: tuple[str, ...] | Mapping[str, str] = ()
    secret: str | Secret[str] | None = None
    keep: tuple[str, ...] = ()
    encryption_key: str | Secret[str] | None = None
    _rules: Rules = field(init=False, repr=False, compare=False)
    _masks: Mapping[Method, Mask] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.mask, Mapping):
            given = [f"{pattern} = {method}" for pattern, method in self.mask.items()]
            object.__setattr__(self, "mask", tuple(given))
        for option in ("tables", "kinds", "drop", "mask", "keep"):
            object.__setattr__(self, option, _strings(option, getattr(self, option)))
        for kind in self.kinds:
            if kind.removeprefix("!") not in KINDS:
                raise ConfigurationError(
                    f"kinds: {kind!r} is not one of {', '.join(KINDS)}, or one of these after !"
                )
        for option in ("secret", "encryption_key"):
            text = _text(getattr(self, option))
            object.__setattr__(self, option, Secret(text) if text else None)
        entries = [parse_entry(entry) for entry in self.mask]
        methods = tuple([method for _, method in entries])
        if not self.secret and any(method.name in ("hash", "format") for method in methods):
            raise ConfigurationError(
                "mask needs a secret, the key of its hashes: set a long random one, and keep it"
            )
        secret, key = _text(self.secret).encode(), _text(self.encryption_key)
        object.__setattr__(self, "_masks", {method: mask_of(method, secret, key) for method in methods})
        rules = Rules(
            Patterns("tables", self.tables, 2, exclusions=True),
            Patterns("drop", self.drop, 3),
            Patterns("mask", tuple([pattern for pattern, _ in entries]), 3),
            Patterns("keep", self.keep, 3),
            methods,
        )
        object.__setattr__(self, "_rules", rules)

    def __reduce__(self) -> tuple[object, ...]:
        # The pickle contains the key, because another process must mask with the same key.
        keys = _text(self.secret) or None, self.keep, _text(self.encryption_key) or None
        return Selection, (self.tables, self.kinds, self.drop, self.mask, *keys)

    @property
    def rules(self) -> Rules:
        """The parsed patterns."""
        return self._rules

    @property
    def masks(self) -> Mapping[Method, Mask]:
        """The function of each method that the selection uses."""
        return self._masks

    @property
    def selected_kinds(self) -> frozenset[str]:
        """The kinds of change that are selected."""
        excluded = {kind[1:] for kind in self.kinds if kind.startswith("!")}
        selected = {kind for kind in self.kinds if not kind.startswith("!")} or set(KINDS)
        if "insert" in selected:
            selected.add("read")
        return frozenset(selected - excluded)

    @property
    def forgetful(self) -> list[str]:
        """The hiding patterns that may still match something after the hidden table or column has another name."""
        hiding = (*self._rules.drop.all, *self._rules.mask.all)
        excluding = (pattern for pattern in self._rules.tables.all if pattern.excludes)
        return [pattern.text for pattern in (*hiding, *excluding) if pattern.optional or not pattern.exact]

    def hidden(self, catalog: TableCatalog) -> list[str]:
        """Return the hidden columns and tables as exact patterns: ``public.people.email``, ``!public.audit``."""
        found = []
        for table in catalog:
            family = table.names, *catalog.ancestors(table.oid)
            selection = select_table(self._rules, table.oid, family, table.numbered)
            if not selection.selected:
                if self._rules.tables.excludes(selection.family):
                    found.append(f"!{selection.name}")
                continue
            found += [
                quote((*table.names, column))
                for column, action in selection.actions.items()
                if action is not KEPT
            ]
        return found

    def unmatched(self, catalog: TableCatalog) -> list[str]:
        """Return an error for each pattern that matches none of these tables and columns."""
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
        """Return the parents whose names select or exclude partitions and children, or hide columns of them."""
        found: dict[str, None] = {}
        for table in catalog:
            own, ancestors = (
                select_table(self._rules, table.oid, (table.names,), table.numbered),
                catalog.ancestors(table.oid),
            )
            for ancestor in ancestors:
                other = select_table(self._rules, table.oid, (table.names, ancestor), table.numbered)
                if (other.selected, other.actions) != (own.selected, own.actions):
                    found[quote(ancestor)] = None
        return list(found)


def _text(value: str | Secret[str] | None) -> str:
    return "" if value is None else Secret.of(value).reveal()


def _strings(option: str, value: Any) -> tuple[str, ...]:
    # A string is a sequence too, but of characters.
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ConfigurationError(f'{option} must be a list of strings: write ["…"]')
    return tuple(value)
