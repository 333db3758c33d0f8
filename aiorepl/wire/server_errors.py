"""The server's errors about slots, as errors that say what to do."""

from __future__ import annotations

from aiorepl.errors import ConfigurationError, ConnectionFailed, ServerError, SlotError
from aiorepl.wire.opening import GRANT


def slot_problem(error: Exception, slot: str, *, wanted: bool = True) -> Exception:
    """Return the error that says what to do about the server's error; other errors are returned unchanged.

    :param wanted: whether the error advises creating a missing slot; false for commands that alter or drop a slot.
    """
    if not isinstance(error, ServerError):
        return error
    message = error.message or ""
    match error.sqlstate:
        case "42704" if "publication" in message:
            return missing_publication(message)
        case "42704":
            return missing_slot(slot, wanted=wanted)
        case "55006":
            return SlotError(
                f"{message}: another consumer is connected to slot {slot!r}; stop it, or use a slot of your own",
                busy=True,
            )
        case "42710":
            return SlotError(f"replication slot {slot!r} exists already", busy=True)
        case "53400":
            return SlotError(f"{message}: raise max_replication_slots, or drop an unused slot")
        case "42501":
            return ConnectionFailed(f"{message}: {GRANT}", permanent=True)
        case "55000" if "wal_level" in message:
            return ConfigurationError(f"{message}: set wal_level = logical on the server and restart it")
        case "55000":
            return SlotError(f"slot {slot!r} cannot be used: {message}")
    return error


def missing_slot(slot: str, *, wanted: bool = True) -> SlotError:
    """Return the error for a slot that does not exist.

    :param wanted: whether the error advises creating the slot.
    """
    remedy = (
        "create it, by create_slot = true in a pipeline file, or --create-slot"
        if wanted
        else "aiorepl slots lists those that do"
    )
    return SlotError(f"replication slot {slot!r} does not exist: {remedy}")


class MissingPublication(ConfigurationError):
    """A publication does not exist at the decoded position of the WAL, or the server does not find the publication
    there.
    """


def missing_publication(message: str) -> MissingPublication:
    """Return the error for a publication that did not exist at the decoded position of the WAL, even if it exists now.

    :param message: the server's message, which names the publication.
    """
    return MissingPublication(
        f"{message}: at the slot's position in the WAL the publication did not exist, because it was dropped or created later; "
        "the server cannot decode changes from there, even if it exists now. CREATE PUBLICATION on the source if it is missing; "
        "then start again with resnapshot=True (--resnapshot, with a journal or state_dir), or drop the slot and start with "
        "create_slot (--create-slot) and accept_gap=True (--accept-gap). If the publication was just added to this source, start without "
        "it until the slot has passed its creation"
    )
