"""The exceptions of aiorepl. Every one has a text of one line, and an exit code for the command line.

    AioreplError                   the base class; catch it for everything below                 exit
     ├── ConfigurationError        an option, or a combination of options, that cannot work        2
     ├── ConnectionFailed          no server answered, or it refused the login                     3
     ├── ConnectionLost            an open connection ended early                                  3
     ├── ServerError               the server's ErrorResponse: SQLSTATE, message, hint             3
     ├── SlotError                 the slot is missing, in use, lost, or another one               3
     ├── ProtocolError             the server violated the replication protocol                    1
     ├── DataError                 a value does not have the form of its type                      1
     ├── SchemaChanged             a table's columns changed while a Spark query read it           1
     ├── SpoolError                there is no room for the transactions in progress               1
     ├── JournalError              the journal is locked, unreadable, or another source's          1
     │    └── DamagedJournal       a file of the journal is missing or was changed                 1
     └── SinkError                 a sink cannot continue                                          4
          ├── TransientError       raised by a sink: a retry may succeed                           4
          └── PermanentError       raised by a sink: a retry cannot succeed                        4

No text contains row data, passwords or tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from aiorepl.lsn import LSN, ZERO


def printable(text: str) -> str:
    """Escape line breaks, control and format characters, so that the text is one line.

    Names and messages come from the server, can contain any character, and end in logs and terminals.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown(value: object) -> str:
    """Describe the value of an option of a wrong type, without the value, which may be a password. A text that begins like a
    number is shown.
    """
    if value is None or (isinstance(value, str) and value[:1].isdigit()):
        return repr(value)
    return f"of type {type(value).__name__}"


def raised(error: BaseException) -> str:
    """Say which exception a user's code raised, and where: ``raised KeyError (mine.py, line 12)``, without its text.

    The place is the last line in code that is not a library's.
    """
    # Imported here, because no start needs them.
    import sysconfig
    import traceback

    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith((*libraries, str(Path(__file__).parent), "<"))
    ]
    if not own:
        return f"raised {type(error).__name__}"
    return f"raised {type(error).__name__} ({Path(own[-1].filename).name}, line {own[-1].lineno})"


def quotes_no_row(error: BaseException) -> bool:
    """Whether the text of an error names packages, files or addresses, and never a row: it may be shown.

    An error of the operating system has the system's text if it has an ``errno``; otherwise the text may come from any
    library. pyiceberg's ``NotInstalledError`` names the extra of pyiceberg that is missing; it is no ImportError.
    """
    if isinstance(error, OSError) and (
        type(error).__module__ == "builtins" or isinstance(error, (PermissionError, ConnectionError))
    ):
        return error.errno is not None
    return isinstance(error, (AioreplError, ImportError)) or (
        type(error).__name__ == "NotInstalledError" and type(error).__module__.startswith("pyiceberg")
    )


def loggable(error: BaseException) -> str:
    """Return the text of an aiorepl error; of any other the class name, and its text unless that may quote rows."""
    if isinstance(error, AioreplError):
        return str(error)
    name = type(error).__name__
    return f"{name}: {printable(str(error))}" if quotes_no_row(error) else name


class AioreplError(Exception):
    """The base class of all exceptions that aiorepl raises.

    ``exit_code`` is the exit code of the command line. ``str()`` is one printable line.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigurationError(AioreplError):
    """An option, or a combination of options, cannot work. The text names the option to change."""

    exit_code = 2


class ConnectionFailed(AioreplError):
    """No server answered, or it refused the connection. Raised by connecting; the pipeline retries it if it is transient.

    :param permanent: whether the same attempt would fail again, as with a wrong password or a missing database.
    """

    exit_code = 3

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class ConnectionLost(AioreplError):
    """An open connection ended without CopyDone. Nothing is lost: the pipeline reconnects, and the server resends."""

    exit_code = 3


# The fields of ErrorResponse and NoticeResponse, from PostgreSQL's page "Error and Notice Message Fields". Any may be
# missing, and unknown ones are ignored, as the page asks.
FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "S": "severity_localized",
        "V": "severity",
        "C": "sqlstate",
        "M": "message",
        "D": "detail",
        "H": "hint",
        "P": "position",
        "p": "internal_position",
        "q": "internal_query",
        "W": "where",
        "s": "schema",
        "t": "table",
        "c": "column",
        "d": "data_type",
        "n": "constraint",
        "F": "file",
        "L": "line",
        "R": "routine",
    }
)


class ServerMessage:
    """An ErrorResponse or NoticeResponse, each field an attribute; ``None`` if the server did not send it.

    ``detail``, ``where`` and ``internal_query`` can quote rows. So ``text`` does not contain them.

    :param fields: the texts by field letter.
    """

    severity_localized: str | None
    severity: str | None
    sqlstate: str | None
    message: str | None
    detail: str | None
    hint: str | None
    position: str | None
    internal_position: str | None
    internal_query: str | None
    where: str | None
    schema: str | None
    table: str | None
    column: str | None
    data_type: str | None
    constraint: str | None
    file: str | None
    line: str | None
    routine: str | None

    def __init__(self, fields: Mapping[str, str]) -> None:
        for letter, name in FIELDS.items():
            setattr(self, name, fields.get(letter))
        self.fields = dict(fields)

    @property
    def text(self) -> str:
        """Message, SQLSTATE and hint on one printable line."""
        text = self.message or "the server sent no message"
        if self.sqlstate is not None:
            text += f" (SQLSTATE {self.sqlstate})"
        return printable(f"{text}; {self.hint}" if self.hint else text)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.severity} {self.sqlstate}>"


class ServerNotice(ServerMessage):
    """A NoticeResponse. It is logged and never raised."""


class ServerError(ServerMessage, AioreplError):
    """An ErrorResponse: the server rejected a command. ``sqlstate`` and the text say why."""

    exit_code = 3

    def __init__(self, fields: Mapping[str, str]) -> None:
        ServerMessage.__init__(self, fields)
        AioreplError.__init__(self, self.text)

    def __reduce__(self) -> tuple[type[ServerError], tuple[dict[str, str]]]:
        return type(self), (self.fields,)


class SlotError(AioreplError):
    """The replication slot is missing, in use, lost, of another kind, or another slot than a stored position names.

    Raised at the start and after a reconnection. The text says whether to wait, to name another slot, to accept a gap, or to
    load the tables again.

    :param busy: whether another process uses the slot now, so that a later attempt may succeed.
    """

    exit_code = 3

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


class SlotLost(SlotError):
    """The slot no longer has changes that were not delivered: it was dropped, invalidated or advanced, or the server has lost its last WAL.

    ``Pipeline(on_slot_lost="resnapshot")`` lets the next start read all tables again.

    :param catalog_xmin: the slot's ``catalog_xmin``, an xid of 32 bits, if the server has invalidated the slot; otherwise ``None``.
    :param confirmed: the slot's ``confirmed_flush_lsn``, if the server has invalidated the slot; otherwise 0/0.
    """

    def __init__(
        self, message: str, *, catalog_xmin: int | None = None, confirmed: LSN = ZERO, busy: bool = False
    ) -> None:
        super().__init__(message, busy=busy)
        self.catalog_xmin = catalog_xmin
        self.confirmed = confirmed


class ProtocolError(AioreplError):
    """A message violates the protocol. Neither it nor anything after it is delivered or acknowledged.

    Retries do not help: report it, with the server's version and the name of the output plugin.

    :param problem: the violation.
    :param message: the message's name in PostgreSQL's documentation; ``None`` if the frame itself is invalid.
    :param field: the invalid field.
    :param lsn: the WAL position of the frame.
    """

    def __init__(
        self, problem: str, *, message: str | None = None, field: str | None = None, lsn: int | None = None
    ) -> None:
        self.problem, self.message, self.field = problem, message, field
        self.lsn = None if lsn is None else LSN(lsn)
        where = ".".join(part for part in (message, field) if part)
        at = "" if lsn is None else f" at {self.lsn}"
        super().__init__(f"{where}{at}: {problem}" if where or at else problem)

    def at(self, lsn: int) -> ProtocolError:
        """Return the same error with its WAL position, which the decoder does not know."""
        return ProtocolError(self.problem, message=self.message, field=self.field, lsn=lsn)

    def __reduce__(self) -> tuple[object, ...]:
        return _protocol_error, (self.problem, self.message, self.field, self.lsn)


def _protocol_error(problem: str, message: str | None, field: str | None, lsn: int | None) -> ProtocolError:
    return ProtocolError(problem, message=message, field=field, lsn=lsn)


class DataError(AioreplError):
    """A column's bytes do not have the form of its type. The text names relation, column and type, not the value.

    Raised when the value is read, not when it is received. ``raw_new`` and ``raw_old`` of the
    change still return its bytes.
    """


class SchemaChanged(AioreplError):
    """A table's columns changed while a Spark query was reading it. The query has read everything before the change.

    The text says what has changed, and whether to start the query again or to give it other columns first.
    """


class SpoolError(AioreplError):
    """Transactions in progress do not fit in memory, and the spool file cannot be written or read. Nothing is lost.

    Make room in the spool's folder, or raise ``transaction_buffer_bytes``.

    :param permanent: whether a retry cannot succeed. After a full disk, for example, a retry can succeed.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class JournalError(AioreplError):
    """The journal cannot be used: another process writes it, it cannot be read, or it lacks the segments a reader needs.

    The text names the file and says what to do. If an OSError is the reason, it is the ``__cause__``.
    """


class DamagedJournal(JournalError):
    """A file of the journal is missing, or was changed after it was written. Restore the file from a copy.

    :param problem: the file, the place in it, and the problem.
    :param remedy: what to do, in place of the default text.
    """

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        super().__init__(f"{problem}. {remedy or _RESTORE}")
        self._arguments = problem, remedy

    def __reduce__(self) -> tuple[type[DamagedJournal], tuple[str, str | None]]:
        # The default would pass the whole text as the problem.
        return type(self), self._arguments


_RESTORE: Final = (
    "Put back a copy of the file; if there is none, start with an empty journal and resnapshot=True (--resnapshot), because "
    "the server does not resend what was confirmed"
)


class SinkError(AioreplError):
    """A sink cannot continue: its retries are exhausted, or a retry cannot succeed. The text names the sink."""

    exit_code = 4


class TransientError(SinkError):
    """Raised by a sink: the same call may succeed later. The sink's RetryPolicy decides when it is repeated.

    :param retry_after: seconds to wait first, if the target named them.
    :param rewind: from ``write`` and ``flush``: batches that were accepted before are lost as well. The sink is opened again
        and receives everything after the position that ``open`` returns.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, rewind: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.rewind = rewind


class PermanentError(SinkError):
    """Raised by a sink: this batch cannot succeed as it is. The sink's error policy decides what happens to it.

    :param rejected: the changes that the target rejects, if the sink knows; the target has then accepted all others.
    :param fatal: whether every other batch would fail as well. The sink then stops, whatever its error policy.
    """

    def __init__(self, message: str, *, rejected: Sequence[Any] = (), fatal: bool = False) -> None:
        super().__init__(message)
        self.rejected = tuple(rejected)
        self.fatal = fatal
