"""Translates the errors of the Redis client for the engine."""

from __future__ import annotations

import os
import socket
from typing import Final

from redis import exceptions as errors

from aiorepl import PermanentError, TransientError
from aiorepl_sinks import tls


def problem(error: errors.RedisError) -> PermanentError | TransientError:
    """Translate an error. Some of Redis' messages quote arguments, so only their first word is kept."""
    code = str(error).partition(" ")[0]
    # The client wraps errors that occur while it connects.
    told: tuple[BaseException | None, ...] = (error, error.__cause__, error.__context__)
    refused = any(isinstance(one, (errors.AuthenticationError, errors.NoPermissionError)) for one in told)
    if refused or code in _REFUSALS or any(words in str(error) for words in _REFUSALS_IN_SCRIPTS):
        return PermanentError(
            "redis: user or password is wrong, or the user may not run EVALSHA, SCRIPT, HGET, HGETALL, HSET, INFO, TYPE, "
            "WAIT, XADD, XINFO and XTRIM on these keys"
        )
    if (told_by_tls := tls.problem("redis", error)) is not None:
        return told_by_tls
    if code in _PASSING:
        return TransientError(f"redis: the server says {code}")
    if isinstance(error, (errors.ConnectionError, errors.TimeoutError)):
        reasons = (_reason(one) for one in told if isinstance(one, OSError) and one.errno)
        return TransientError(f"redis: no answer from the server ({next(reasons, type(error).__name__)})")
    if code in ("MOVED", "CROSSSLOT") or isinstance(error, errors.MovedError):
        return PermanentError(
            "redis: this is a node of a Redis Cluster, where one script cannot reach all streams"
        )
    return PermanentError(f"redis: {type(error).__name__}")


def _reason(error: OSError) -> str | None:
    """The operating system's text for the error; asyncio's text contains the address."""
    return error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)


_REFUSALS: Final = {"NOAUTH", "WRONGPASS", "NOPERM"}
# ACL errors inside a script, up to Redis 6.2 and from 7 on; they do not begin with an error code.
_REFUSALS_IN_SCRIPTS: Final = ("The user executing the script can't", "ACL failure in script")
_PASSING: Final = {
    *("LOADING", "BUSY", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "READONLY", "OOM", "MISCONF", "CLUSTERDOWN"),
    *("UNBLOCKED", "NOMASTERLINK", "-READONLY"),
}
