"""Brokers, credentials and trusted CAs of the sink ``kafka``."""

from __future__ import annotations

import logging
import os
from typing import Any, Final, TypeAlias

from aiokafka.conn import collect_hosts

from aiorepl import ConfigurationError
from aiorepl_sinks import tls

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_File: TypeAlias = str | os.PathLike[str] | None


class Login:
    """The options by which clients of the cluster connect.

    :param files: PEM files with the trusted CAs, the client's certificate and its private key, and that key's password.
    :ivar servers: host and port of each bootstrap server.
    :ivar connection: the arguments of a single connection.
    :ivar client: the arguments of a client.
    :raises ConfigurationError: for options that contradict each other, or a file that is missing or invalid.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str],
        *,
        security_protocol: str,
        sasl_mechanism: str,
        username: str | None,
        password: str | None,
        files: tuple[_File, _File, _File, str | None],
    ) -> None:
        if security_protocol not in _PROTOCOLS:
            raise ConfigurationError(f"kafka: security_protocol is one of {', '.join(_PROTOCOLS)}")
        if sasl_mechanism not in _MECHANISMS:
            raise ConfigurationError(f"kafka: sasl_mechanism is one of {', '.join(_MECHANISMS)}")
        sasl = security_protocol.startswith("SASL")
        if sasl and (username is None or password is None):
            raise ConfigurationError(f"kafka: {security_protocol} needs username and password")
        if not sasl and (username is not None or password is not None):
            raise ConfigurationError(
                "kafka: username and password need security_protocol SASL_SSL or SASL_PLAINTEXT"
            )
        if not security_protocol.endswith("SSL") and any(files):
            raise ConfigurationError("kafka: ca, certificate and key need security_protocol SSL or SASL_SSL")
        addresses = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        if not all(address.rpartition(":")[2].strip().isdigit() for address in addresses):
            raise ConfigurationError("kafka: bootstrap_servers is host:port, or a list of them")
        self.protocol = security_protocol
        self.servers: list[tuple[str, int]] = [
            (host, port)
            for host, port, _ in collect_hosts([address.strip() for address in addresses], randomize=False)
        ]
        self.connection: dict[str, Any] = {
            "security_protocol": security_protocol,
            "sasl_mechanism": sasl_mechanism,
            "sasl_plain_username": username,
            "sasl_plain_password": password,
        }
        if security_protocol.endswith("SSL"):
            self.connection["ssl_context"] = tls.context("kafka", *files)
        self.client = {"bootstrap_servers": bootstrap_servers, **self.connection}

    @property
    def shown(self) -> str:
        """Host and port of each bootstrap server."""
        return ", ".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.servers
        )


def _without_logins(record: logging.LogRecord) -> bool:
    return not any(type(value).__name__.startswith("Sasl") for value in record.args or ())


# At DEBUG the client logs whole requests. A request of SASL PLAIN contains the password.
logging.getLogger("aiokafka.conn").addFilter(_without_logins)
