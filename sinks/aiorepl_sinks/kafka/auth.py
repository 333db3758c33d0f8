"""How the Kafka sink logs in: what every client of the cluster is made with."""

from __future__ import annotations

import logging
from typing import Any, Final

from aiokafka.conn import collect_hosts

from aiorepl import ConfigurationError
from aiorepl_sinks import tls

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Login:
    """Where the brokers are, who we are to them, and whom we believe.

    :param files: of trusted certificates, of our certificate and of its key, and that one's password.
    :raises ConfigurationError: no broker could be told this.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str],
        *,
        security_protocol: str,
        sasl_mechanism: str,
        username: str | None,
        password: str | None,
        files: tuple[str | None, str | None, str | None, str | None],
    ) -> None:
        if security_protocol not in _PROTOCOLS:
            raise ConfigurationError(f"kafka: security_protocol is one of {', '.join(_PROTOCOLS)}")
        if sasl_mechanism not in _MECHANISMS:
            raise ConfigurationError(f"kafka: sasl_mechanism is one of {', '.join(_MECHANISMS)}")
        sasl = security_protocol.startswith("SASL")
        if sasl and (username is None or password is None):
            raise ConfigurationError(f"kafka: {security_protocol} wants username and password")
        if not sasl and (username is not None or password is not None):
            raise ConfigurationError(
                "kafka: username and password want security_protocol SASL_SSL or SASL_PLAINTEXT"
            )
        if not security_protocol.endswith("SSL") and any(files):
            raise ConfigurationError("kafka: ca, certificate and key want security_protocol SSL or SASL_SSL")
        listed = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else bootstrap_servers
        if not all(server.rpartition(":")[2].strip().isdigit() for server in listed):
            raise ConfigurationError("kafka: bootstrap_servers wants host:port, perhaps several")
        self.protocol = security_protocol
        self.servers: list[tuple[str, int]] = [
            (host, port)
            for host, port, _ in collect_hosts([server.strip() for server in listed], randomize=False)
        ]
        self.options: dict[str, Any] = {
            "security_protocol": security_protocol,
            "sasl_mechanism": sasl_mechanism,
            "sasl_plain_username": username,
            "sasl_plain_password": password,
        }
        """What a connection is made with."""
        if security_protocol.endswith("SSL"):
            self.options["ssl_context"] = tls.context("kafka", *files)
        self.client = {"bootstrap_servers": bootstrap_servers, **self.options}
        """What a client is made with."""


def _log_no_login(record: logging.LogRecord) -> bool:
    return not any(type(value).__name__.startswith("Sasl") for value in record.args or ())


# At DEBUG it logs requests as they are, and those of SASL PLAIN have the password in them.
logging.getLogger("aiokafka.conn").addFilter(_log_no_login)
