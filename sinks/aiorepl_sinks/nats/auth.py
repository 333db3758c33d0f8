"""Servers, credentials and trusted CAs of the sink ``nats``."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from nats.aio.client import Client, RawCredentials

from aiorepl import ConfigurationError
from aiorepl_sinks import tls

_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+(\S+)\s")
_SEED: Final = re.compile(r"-BEGIN USER NKEY SEED-+\s+(\S+)\s")


class Login:
    """The options by which the client connects.

    :raises ConfigurationError: for options that contradict each other, or a file that is missing or invalid.
    """

    def __init__(
        self,
        servers: str | list[str],
        *,
        user: str | None,
        password: str | None,
        token: str | None,
        credentials: str | os.PathLike[str] | None,
        nkey: str | os.PathLike[str] | None,
        ca: str | os.PathLike[str] | None,
        certificate: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        key_password: str | None,
    ) -> None:
        self._servers = [servers] if isinstance(servers, str) else servers
        schemes = set(map(_scheme, self._servers))
        if (user is None) != (password is None):
            raise ConfigurationError("nats: user and password belong together: set both")
        if sum(option is not None for option in (user, token, credentials, nkey)) > 1:
            raise ConfigurationError("nats: set one of user and password, token, credentials and nkey")
        self._options: dict[str, Any] = {"user": user, "password": password, "token": token}
        self._credentials, self._nkey = credentials, nkey
        self._encrypted = "tls" in schemes or ca is not None or certificate is not None or key is not None
        if self._encrypted:
            self._options["tls"] = tls.context("nats", ca, certificate, key, key_password)
        self.options()

    @property
    def shown(self) -> str:
        """The servers' hosts and ports."""
        return ", ".join(server.rpartition("@")[2].rpartition("/")[2] for server in self._servers)

    def client(self) -> Client:
        """Return a new client, not connected."""
        return _Encrypted() if self._encrypted else Client()

    def options(self) -> dict[str, Any]:
        """Return the arguments of ``connect``. Files are read each time, because short-lived credentials are renewed.

        :raises ConfigurationError: a file is missing or invalid.
        """
        options = {"servers": self._servers, **self._options}
        if self._credentials is not None:
            # Check the JWT and the seed here: the client would read past the end of a file without them.
            text = _read("credentials", self._credentials)
            token, seed = _JWT.search(text), _SEED.search(text)
            if token is None or seed is None:
                raise ConfigurationError(
                    f"nats: credentials {self._credentials} contains no user JWT and seed"
                )
            _check("credentials", self._credentials, seed[1])
            options["user_credentials"] = RawCredentials(
                f"-----BEGIN NATS USER JWT-----\n{token[1]}\n-----BEGIN USER NKEY SEED-----\n{seed[1]}\n"
            )
        if self._nkey is not None:
            options["nkeys_seed_str"] = _read("nkey", self._nkey).strip()
            _check("nkey", self._nkey, options["nkeys_seed_str"])
        return options


class _Encrypted(Client):
    """Uses TLS even if the server's INFO, which an attacker can change, does not require it."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        info["tls_required"] = True


def _scheme(server: str) -> str:
    try:
        parts = urlsplit(server if "://" in server else f"nats://{server}")
        known = parts.scheme in ("nats", "tls") and parts.hostname is not None
        if known and (parts.port is None or parts.port > 0):  # raises ValueError for an invalid port
            return parts.scheme
    except ValueError:
        pass
    raise ConfigurationError("nats: servers is nats://host:4222 or tls://host:4222, or a list of them")


def _read(option: str, path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text()
    except UnicodeDecodeError:
        raise ConfigurationError(f"nats: {option} {path} is not a text file") from None
    except OSError as error:
        raise ConfigurationError(f"nats: {option} {path} cannot be read: {error.strerror}") from None


def _check(option: str, path: str | os.PathLike[str], seed: str) -> None:
    try:
        nkeys = import_module("nkeys")
    except ImportError:
        raise ConfigurationError(f"nats: {option} needs nkeys: pip install 'aiorepl[nats]'") from None
    try:
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except (nkeys.NkeysError, ValueError, IndexError):
        raise ConfigurationError(f"nats: {option} {path} contains no seed of an NKey") from None
