"""Translates the errors of the Redis client for the engine."""

from __future__ import annotations

import os
import re
import socket
from typing import Final

from redis import exceptions as errors

from aiorepl import PermanentError, TransientError
from aiorepl_sinks import tls

# An error's code is the first word of its message. Until Redis 6.2 the message of a failed script ends with ": -" and
# the message of the command that failed in the script.
_CODE: Final = re.compile(r"(?:^|: -)([A-Z]+)\b")
_ACCESS_DENIED: Final = {"NOAUTH", "WRONGPASS", "NOPERM"}
# Messages of ACL errors within a script, until Redis 6.2 and since Redis 7. These errors have no code.
_ACCESS_DENIED_IN_SCRIPT: Final = ("The user executing the script can't", "ACL failure in script")
_TRANSIENT: Final = {
    *("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "READONLY", "OOM", "MISCONF", "CLUSTERDOWN"),
    *("UNBLOCKED", "NOMASTERLINK"),
}
# Errors whose code the client removes from the message.
_CODES: Final[dict[type[errors.RedisError], str]] = {
    errors.OutOfMemoryError: "OOM",
    errors.ReadOnlyError: "READONLY",
    errors.BusyLoadingError: "LOADING",
    errors.TryAgainError: "TRYAGAIN",
    errors.MasterDownError: "MASTERDOWN",
    errors.ClusterDownError: "CLUSTERDOWN",
}
_ADVICE: Final = {
    "OOM": ": it has reached maxmemory: raise it, or limit the streams with max_length",
    "MISCONF": ": it cannot write to its disk: see its log",
    "NOREPLICAS": ": it has fewer replicas than min-replicas-to-write",
    "READONLY": ": it is a replica: connect to the master",
}


def translate(error: errors.RedisError, server: str = "the server") -> PermanentError | TransientError:
    """Translate an error. Redis' messages may quote arguments, so only the code of the error is kept.

    Redis denies a script's first write or no write. So a script that failed with a transient code has written
    nothing.

    :param server: host and port, for the message.
    """
    code = _CODES.get(type(error)) or (found[1] if (found := _CODE.search(str(error))) else "")
    # The client wraps errors that occur while it connects.
    chain: tuple[BaseException | None, ...] = (error, error.__cause__, error.__context__)
    denied = any(isinstance(each, (errors.AuthenticationError, errors.NoPermissionError)) for each in chain)
    if denied or code in _ACCESS_DENIED or any(text in str(error) for text in _ACCESS_DENIED_IN_SCRIPT):
        return PermanentError(
            "redis: user or password is wrong, or the user may not run EVALSHA, SCRIPT, HGET, HGETALL, HSET, INFO, TYPE, "
            "WAIT, XADD, XINFO and XTRIM on these keys"
        )
    if (tls_error := tls.translate("redis", error)) is not None:
        return tls_error
    if code in _TRANSIENT:
        return TransientError(f"redis: the server replied {code}{_ADVICE.get(code, '')}")
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError)):
        reasons = (_reason(each) for each in chain if isinstance(each, OSError) and each.errno)
        return TransientError(f"redis: no answer from {server} ({next(reasons, type(error).__name__)})")
    if code in ("MOVED", "CROSSSLOT") or isinstance(error, errors.MovedError):
        return PermanentError(
            "redis: the server is a node of a Redis Cluster, where one script cannot reach all streams: use a server that "
            "is not clustered"
        )
    return PermanentError(f"redis: {type(error).__name__}{f' ({code})' if code else ''}")


def _reason(error: OSError) -> str | None:
    """Return the operating system's text for the error; asyncio's text contains the address."""
    return error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
