"""What can go wrong, named by who acted.

    AioreplError
     ├── ConfigurationError        you: a value, an option or a combination that cannot work        exit 2
     ├── ConnectionFailed          outside: no server there, or it would not let us in              exit 3
     ├── ConnectionLost            outside: it was there and went away; reconnecting may help       exit 3
     ├── ServerError               the server said no: SQLSTATE, message, detail, hint              exit 3
     ├── SlotError                 the slot is missing, busy, lost, or not the one we know          exit 3
     ├── ProtocolError             the peer sent what the protocol does not allow                   exit 1
     ├── DataError                 a value that cannot be read as what its type says                exit 1
     ├── SpoolError                the disk has no room for transactions in progress               exit 1
     ├── JournalError              the journal is damaged, foreign, or locked                       exit 1
     └── SinkError                 a sink failed for good                                           exit 4
          ├── TransientError       raised by a sink: later may do
          └── PermanentError       raised by a sink: never will

No message carries a row, a password or a token: names, positions and lengths only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Final

from aiorepl.lsn import LSN


def printable(text: str) -> str:
    """The text on one line, with line breaks, control and format characters escaped.

    Names and messages from a server may hold anything, and end in logs and terminals.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class AioreplError(Exception):
    """The root of everything raised on purpose. ``exit_code`` is what the command line ends with.

    ``str`` gives one printable line, whatever the names in it are.
    """

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigurationError(AioreplError):
    """A value, an option or a combination of options that cannot work; the message says which and what to do."""

    exit_code = 2


class ConnectionFailed(AioreplError):
    """No server answered, or it refused us before replication began.

    ``permanent`` tells whether trying again as we are is pointless (wrong password, no such database).
    """

    exit_code = 3

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class ConnectionLost(AioreplError):
    """The connection was there and ended without an orderly CopyDone; what was in flight comes again."""

    exit_code = 3


# Field letters of ErrorResponse and NoticeResponse, as in PostgreSQL's "Error and Notice Message Fields".
# None is promised to be present; an unknown letter is kept out, as the page asks.
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
    """An ErrorResponse or NoticeResponse: every field of the protocol as an attribute, ``None`` where none was sent.

    ``detail``, ``where`` and ``internal_query`` can quote rows, so ``text`` leaves them out: read the attributes.
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
    """A NoticeResponse."""


class ServerError(ServerMessage, AioreplError):
    """An ErrorResponse."""

    exit_code = 3

    def __init__(self, fields: Mapping[str, str]) -> None:
        ServerMessage.__init__(self, fields)
        AioreplError.__init__(self, self.text)

    def __reduce__(self) -> tuple[type[ServerError], tuple[dict[str, str]]]:
        return type(self), (self.fields,)


class SlotError(AioreplError):
    """The replication slot is missing, in use, lost, of another kind, or not the one our position belongs to.

    ``busy`` tells that another process holds it just now, so that waiting may help.
    """

    exit_code = 3

    def __init__(self, message: str, *, busy: bool = False) -> None:
        super().__init__(message)
        self.busy = busy


class ProtocolError(AioreplError):
    """The peer sent what the protocol does not allow. Nothing from there on is delivered or acknowledged.

    :param message: the message's name, as the PostgreSQL pages spell it, or ``None`` for the frame itself.
    :param field: the field at fault.
    :param lsn: the WAL position that the frame was sent with.
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
        """The same error, told where in the WAL it happened; what the decoder cannot know, its caller adds."""
        return ProtocolError(self.problem, message=self.message, field=self.field, lsn=lsn)

    def __reduce__(self) -> tuple[object, ...]:
        return _protocol_error, (self.problem, self.message, self.field, self.lsn)


def _protocol_error(problem: str, message: str | None, field: str | None, lsn: int | None) -> ProtocolError:
    return ProtocolError(problem, message=message, field=field, lsn=lsn)


class DataError(AioreplError):
    """A column's bytes are not what its type says. Names relation, column and type, never the value."""


class SpoolError(AioreplError):
    """Transactions in progress do not fit in memory, and the spool file cannot be used. Nothing is lost.

    ``permanent`` is false if a retry may succeed, such as after disk space was freed.
    """

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class JournalError(AioreplError):
    """The journal is damaged, belongs to another source, or is locked by another process."""


class DamagedJournal(JournalError):
    """A file of the journal is missing, or was changed after it was written.

    :param problem: the file, the place in it, and the problem.
    :param remedy: what to do, instead of the default text.
    """

    def __init__(self, problem: str, remedy: str | None = None) -> None:
        super().__init__(f"{problem}. {remedy or _RESTORE}")


_RESTORE: Final = (
    "Put back a copy of the file; if there is none, begin with an empty journal and resnapshot=True (--resnapshot), for the "
    "server does not send again what was confirmed"
)


class SinkError(AioreplError):
    """A sink failed for good: retries are spent, or it said that trying again is pointless."""

    exit_code = 4


class TransientError(SinkError):
    """Raised by a sink: the same batch may succeed later.

    :param retry_after: in seconds, if the peer said it.
    :param rewind: of ``write`` and ``flush``: not the batch alone. What was accepted before is lost, too: the sink is
        opened again, and sent everything behind the position it returns.
    """

    def __init__(self, message: str, *, retry_after: float | None = None, rewind: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.rewind = rewind


class PermanentError(SinkError):
    """Raised by a sink: this batch will never succeed as it is.

    :param refused: the changes that the target will never accept, if the sink can tell; it has then accepted all others.
    :param fatal: nor will any other batch, until somebody has changed something: the sink stops, whatever its policy.
    """

    def __init__(self, message: str, *, refused: Sequence[Any] = (), fatal: bool = False) -> None:
        super().__init__(message)
        self.refused = tuple(refused)
        self.fatal = fatal
