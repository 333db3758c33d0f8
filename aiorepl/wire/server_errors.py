"""What a server refuses a slot with, as errors that say what to do."""

from __future__ import annotations

from aiorepl.errors import ConfigurationError, ConnectionFailed, ServerError, SlotError
from aiorepl.wire.opening import GRANT


def slot_problem(error: Exception, slot: str) -> Exception:
    """The server's refusal as the error that says what to do."""
    if not isinstance(error, ServerError):
        return error
    message = error.message or ""
    match error.sqlstate:
        case "42704" if "publication" in message:
            return missing_publication(message)
        case "42704":
            return SlotError(
                f"replication slot {slot!r} does not exist: create it, on the command line --create-slot"
            )
        case "55006":
            return SlotError(
                f"{message}: another consumer is connected to slot {slot!r}; stop it, or use a slot of your own",
                busy=True,
            )
        case "42710":
            return SlotError(f"replication slot {slot!r} exists already")
        case "53400":
            return SlotError(f"{message}: raise max_replication_slots, or drop a slot that is not used")
        case "42501":
            return ConnectionFailed(f"{message}: {GRANT}", permanent=True)
        case "55000" if "wal_level" in message:
            return ConfigurationError(f"{message}: set wal_level = logical on the server and restart it")
        case "55000":
            return SlotError(f"slot {slot!r} cannot be used: {message}")
    return error


def missing_publication(message: str) -> ConfigurationError:
    """A publication did not exist where the server decodes the WAL, whether or not it exists now.

    :param message: the server's, which names it.
    """
    return ConfigurationError(
        f"{message}: it does not exist where the server reads the WAL, because it was dropped or was created later, and "
        "changes from there are not in the stream, also not if it exists again by now. CREATE PUBLICATION on the source if "
        "it is missing; then start again with resnapshot=True (--resnapshot, with a journal), or drop the slot, and start "
        "with create_slot (--create-slot) and accept_gap=True (--accept-gap). If it was only added to this source, start "
        "with the others until the slot has come past its creation"
    )
