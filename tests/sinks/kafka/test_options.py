"""What is said of the cluster, before anything is connected."""

from __future__ import annotations

import pytest

from aiorepl import ConfigurationError
from aiorepl_sinks.kafka import Kafka
from aiorepl_sinks.kafka_login import Login


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        (["a:1", "[::1]:9092"], [("a", 1), ("::1", 9092)]),
    ],
)
def test_servers(servers, expected):
    """One or several, by name or address."""
    plain = {"security_protocol": "PLAINTEXT", "sasl_mechanism": "PLAIN"}
    login = Login(servers, username=None, password=None, files=(None,) * 4, **plain)
    assert expected == login.servers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bootstrap_servers": "a"}, "wants host:port"),
        ({"compression": "brotli"}, "compression is one of gzip, snappy, lz4, zstd"),
        ({"transactional_id": "mine"}, "transactional_id is for exactly_once"),
        ({"binary": True}, "set format = cloudevents"),
        ({"password": "s3cr3t"}, "want security_protocol SASL_SSL"),
        ({"ca": "ca.pem"}, "want security_protocol SSL"),
    ],
)
def test_what_cannot_work(options, says):
    """Is refused with what to do, and no secret in it."""
    with pytest.raises(ConfigurationError, match=says) as raised:
        Kafka(**options)
    assert "s3cr3t" not in str(raised.value)
