"""Replication commands as text, in the grammar of each server version. Pure.

Source: "Streaming Replication Protocol"; repl_gram.y and repl_scanner.l.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from aiorepl.errors import ConfigurationError
from aiorepl.lsn import LSN

IDENTIFY_SYSTEM = "IDENTIFY_SYSTEM"

_SLOT_NAME: Final = re.compile(r"[a-z0-9_]{1,63}")

# A name in a list: quoted as in SQL if it begins with a quote, else verbatim.
_LISTED: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"\s*|([^",][^,]*|))(?:,|$)')


def identifier(name: str) -> str:
    """Quote a name as an identifier.

    :raises ConfigurationError: the name contains a NUL byte.
    """
    if "\0" in name:
        raise ConfigurationError("a name cannot contain a NUL byte")
    return '"' + name.replace('"', '""') + '"'


def split_names(text: str) -> list[str]:
    """Split a list of names separated by commas. A quoted name may contain commas; quotes in it are doubled.

    Unlike in SQL, a name without quotes keeps its case.

    :raises ConfigurationError: quotes do not match.
    """
    found, at = [], 0
    while at < len(text):
        listed = _LISTED.match(text, at)
        if listed is None:
            raise ConfigurationError(
                f"{text!r} is no list of names: quote a name that contains a comma or begins with a quote, and double its quotes, "
                'as in "a, b", "say ""hi""", plain'
            )
        name = listed[2].strip() if listed[1] is None else listed[1].replace('""', '"')
        found += [name] if name else []
        at = listed.end()
    return found


def literal(text: str) -> str:
    """Quote a string literal for the replication grammar, whose only escape is the doubled quote.

    :raises ConfigurationError: the text contains a NUL byte.
    """
    if "\0" in text:
        raise ConfigurationError("an option cannot contain a NUL byte")
    return "'" + text.replace("'", "''") + "'"


def literals(texts: Iterable[str]) -> str:
    """Quote string literals and join them with commas, as for ``IN (…)``."""
    return ", ".join(map(literal, texts))


def require_slot_name(name: str) -> str:
    """Return the name of a slot.

    The server truncates a longer name, and would find another slot.

    :raises ConfigurationError: no slot can have this name.
    """
    if not _SLOT_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not a slot name: use up to 63 lower-case letters, digits and underscores"
        )
    return name


def require_slot(*, server: int, temporary: bool, two_phase: bool, failover: bool) -> None:
    """Check a new slot's options against the server's version.

    :param server: the server's major version.
    :raises ConfigurationError: this server does not support an option.
    """
    if two_phase and server < 15:
        raise ConfigurationError(f"a two_phase slot needs PostgreSQL 15 or later; this server is {server}")
    if failover and server < 17:
        raise ConfigurationError(f"a failover slot needs PostgreSQL 17 or later; this server is {server}")
    if failover and two_phase and server == 17:
        raise ConfigurationError(
            "PostgreSQL 17 does not create a slot with both two_phase and failover: create it with two_phase alone and "
            "alter it to failover, or use 18"
        )
    if failover and temporary:
        raise ConfigurationError("a failover slot cannot be temporary: leave one of the two out")


def create_slot(
    name: str,
    *,
    server: int,
    temporary: bool = False,
    two_phase: bool = False,
    failover: bool = False,
    snapshot: str = "nothing",
) -> str:
    """Return CREATE_REPLICATION_SLOT for pgoutput.

    :param server: the server's major version; 15 changed the grammar.
    :param snapshot: ``"export"``, ``"use"`` or ``"nothing"``.
    :raises ConfigurationError: this server does not support an option, or no slot can have this name.
    """
    if snapshot not in ("export", "use", "nothing"):
        raise ConfigurationError(f"snapshot {snapshot!r} does not exist: it is export, use or nothing")
    require_slot_name(name)
    require_slot(server=server, temporary=temporary, two_phase=two_phase, failover=failover)
    kind = " TEMPORARY" if temporary else ""
    head = f"CREATE_REPLICATION_SLOT {identifier(name)}{kind} LOGICAL pgoutput"
    if server < 15:
        return f"{head} { ({'export': 'EXPORT', 'use': 'USE', 'nothing': 'NOEXPORT'}[snapshot]) }_SNAPSHOT"
    options = [f"SNAPSHOT {literal(snapshot)}"]
    if two_phase:
        options.append("TWO_PHASE true")
    if failover:
        options.append("FAILOVER true")
    return f"{head} ({', '.join(options)})"


def alter_slot(name: str, *, server: int, failover: bool | None = None, two_phase: bool | None = None) -> str:
    """Return ALTER_REPLICATION_SLOT: failover since PostgreSQL 17, two_phase since 18.

    :raises ConfigurationError: this server does not support an option, or none is given.
    """
    if failover is None and two_phase is None:
        raise ConfigurationError("nothing to alter: give failover or two_phase")
    if server < 17 or (two_phase is not None and server < 18):
        least = 17 if two_phase is None else 18
        option = "failover" if two_phase is None else "two_phase"
        raise ConfigurationError(
            f"altering {option} needs PostgreSQL {least} or later; this server is {server}"
        )
    options = {"FAILOVER": failover, "TWO_PHASE": two_phase}
    clauses = ", ".join(
        f"{name} {str(value).lower()}" for name, value in options.items() if value is not None
    )
    return f"ALTER_REPLICATION_SLOT {identifier(require_slot_name(name))} ({clauses})"


def timeline_history(timeline: int) -> str:
    """Return TIMELINE_HISTORY."""
    return f"TIMELINE_HISTORY {timeline}"


def drop_slot(name: str, *, wait: bool = False) -> str:
    """Return DROP_REPLICATION_SLOT; with ``wait`` the server waits until the slot is not in use."""
    return f"DROP_REPLICATION_SLOT {identifier(require_slot_name(name))}{' WAIT' if wait else ''}"


def start_replication(slot: str, lsn: LSN, options: Mapping[str, str]) -> str:
    """Return START_REPLICATION of a logical slot. The stream begins at ``lsn`` or the confirmed LSN, whichever is later."""
    clauses = ", ".join(f"{identifier(name)} {literal(value)}" for name, value in options.items())
    return f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn} ({clauses})"
