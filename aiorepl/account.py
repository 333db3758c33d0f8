"""Whether this process's user has a name, which some programs need."""

from __future__ import annotations

import os
import pwd

from aiorepl.errors import ConfigurationError


def require_account(program: str) -> None:
    """Check that this process's user has a name. The user of ``docker run --user 12345`` has none.

    :param program: the program that needs the name, for the error; may be in the plural.
    :raises ConfigurationError: the user database has no entry for the uid.
    """
    uid = os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise ConfigurationError(
            f"without a name for the user {uid} in /etc/passwd, {program} will not start: add one to the image (useradd --uid {uid}), "
            "or run as a user who has one"
        ) from None
