"""The connection of the sink ``redis``: its URL, its TLS and its credentials."""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from redis import asyncio as client
from redis import exceptions as errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiorepl import ConfigurationError, PermanentError, TransientError
from aiorepl_sinks import tls
from aiorepl_sinks.redis.errors import translate

_URL_OPTIONS: Final = {"client_name", "db", "password", "username"}


class Connection:
    """A client of one server, with a pool of connections that are opened on first use.

    Parameters are those of ``RedisSink``.

    :raises ConfigurationError: the URL or a file of TLS is not valid.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        username: str | None,
        password: str | None,
        ca: str | os.PathLike[str] | None,
        certificate: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        key_password: str | None,
    ) -> None:
        options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        if username is not None:
            options["username"] = username
        if password is not None:
            options["password"] = password
        self._encrypted = url.startswith("rediss://")
        self._server = (
            url.partition("?")[0].partition("//")[2].rpartition("@")[2].partition("/")[0] or "the server"
        )
        if ca is not None or certificate is not None or key is not None:
            if not self._encrypted:
                raise ConfigurationError("redis: ca, certificate and key need a rediss:// URL")
            # Only reports errors in the files at once. The client reads the files when it connects.
            tls.context("redis", ca, certificate, key, key_password)
            files = {"ca_certs": ca, "certfile": certificate, "keyfile": key, "password": key_password}
            options |= {f"ssl_{name}": value for name, value in files.items() if value is not None}
        _check_query(url)
        if self._encrypted:
            options |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        try:
            # No retries by the client, which would be silent. The engine retries, and logs each attempt.
            pool = client.ConnectionPool.from_url(url, **options, retry=Retry(NoBackoff(), 0))
        except ValueError:
            raise ConfigurationError(
                "redis: url is not of the form redis://host:6379/0, rediss:// or unix://"
            ) from None
        self.client = client.Redis.from_pool(pool)

    def error(self, error: errors.RedisError) -> PermanentError | TransientError:
        """Translate an error of a command."""
        return translate(error, self._server)

    def connect_error(self, error: errors.RedisError) -> PermanentError | TransientError:
        """Translate an error of the first command, which may be due to the options of TLS."""
        translated = self.error(error)
        if self._encrypted and type(translated) is TransientError and type(error) is errors.ConnectionError:
            return TransientError(
                f"{translated}: no server listens there, or it requires a client certificate that it trusts: see the options "
                "certificate and key"
            )
        return translated


def _check_query(url: str) -> None:
    """Require that the URL has only the allowed options.

    The client accepts any option in the URL, ``ssl_cert_reqs=none`` included, and prefers it to its keyword arguments.
    """
    try:
        options = set(parse_qs(urlsplit(url).query, keep_blank_values=True))
    except ValueError:
        options = set()
    if options - _URL_OPTIONS:
        # The option is not named: it may be the rest of a password that contains a question mark.
        raise ConfigurationError(
            f"redis: url has other options than {', '.join(sorted(_URL_OPTIONS))}: remove them; certificates are always "
            "verified, see the options ca, certificate and key"
        )
