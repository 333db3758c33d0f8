"""How the NATS sink logs in, and that nothing goes in the clear to a server that was to speak TLS."""

from __future__ import annotations

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
    """Who we are to the servers, and whom we believe.

    :raises ConfigurationError: no server could be told this.
    """

    def __init__(
        self,
        servers: str | list[str],
        *,
        user: str | None,
        password: str | None,
        token: str | None,
        credentials: str | None,
        nkey: str | None,
        ca: str | None,
        certificate: str | None,
        key: str | None,
        key_password: str | None,
    ) -> None:
        self._servers = [servers] if isinstance(servers, str) else servers
        schemes = set(map(_scheme, self._servers))
        if (user is None) != (password is None):
            raise ConfigurationError("nats: user and password belong together")
        if sum(way is not None for way in (user, token, credentials, nkey)) > 1:
            raise ConfigurationError(
                "nats: log in by user and password, token, credentials or nkey: by one of them"
            )
        self._who: dict[str, Any] = {"user": user, "password": password, "token": token}
        self._credentials, self._nkey = credentials, nkey
        self._encrypted = "tls" in schemes or ca is not None or certificate is not None or key is not None
        if self._encrypted:
            self._who["tls"] = tls.context("nats", ca, certificate, key, key_password)
        self.options()

    def client(self) -> Client:
        """One that is not connected."""
        return _Encrypted() if self._encrypted else Client()

    def options(self) -> dict[str, Any]:
        """What it connects with. Files are read each time, since short-lived credentials are renewed."""
        options = {"servers": self._servers, **self._who}
        if self._credentials is not None:
            # The client would look for its lines beyond the end of a file that has none.
            text = _read("credentials", self._credentials)
            token, seed = _JWT.search(text), _SEED.search(text)
            if token is None or seed is None:
                raise ConfigurationError(
                    f"nats: credentials {self._credentials} has no user JWT and seed in it"
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
    """Speaks TLS also where the server does not ask for it, as one would have it who listens in between."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        info["tls_required"] = True


def _scheme(server: str) -> str:
    try:
        parts = urlsplit(server if "://" in server else f"nats://{server}")
        known = parts.scheme in ("nats", "tls") and parts.hostname is not None
        if known and (parts.port is None or parts.port > 0):  # it is looked at when it is asked for
            return parts.scheme
    except ValueError:
        pass
    raise ConfigurationError("nats: servers are nats://host:4222 or tls://host:4222, several of them a list")


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except UnicodeDecodeError:
        raise ConfigurationError(f"nats: {option} {path} is not a text file") from None
    except OSError as error:
        raise ConfigurationError(f"nats: {option} {path} cannot be read: {error.strerror}") from None


def _check(option: str, path: str, seed: str) -> None:
    try:
        nkeys = import_module("nkeys")
    except ImportError:
        raise ConfigurationError(f"nats: {option} needs nkeys: pip install 'aiorepl[nats]'") from None
    try:
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except (nkeys.NkeysError, ValueError, IndexError):
        raise ConfigurationError(f"nats: {option} {path} holds no seed of an NKey") from None
