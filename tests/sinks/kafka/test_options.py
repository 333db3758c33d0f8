"""The options, before the sink connects."""

from __future__ import annotations

import re

import pytest

from aiorepl import ConfigurationError
from aiorepl_sinks.kafka import KafkaSink
from aiorepl_sinks.kafka.auth import Login
from aiorepl_sinks.kafka.topics import topic_name


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


def test_topics_of_different_tables():
    """A legal name does not change, and two tables never share a topic."""
    assert "shop.public.items" == topic_name("shop.public.items")
    places = [
        "my$schema.t",
        "my schema.t",
        "my_schema.t",
        ".",
        "..",
        "_",
        "",
        "x" * 249,
        "x" * 250,
        "x" * 251,
    ]
    topics = list(map(topic_name, places))
    assert len(places) == len(set(topics))
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", topic) and topic not in (".", "..") for topic in topics)
    assert topics == list(map(topic_name, places)), "the same at every start"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bootstrap_servers": "a"}, "bootstrap_servers is host:port"),
        ({"compression": "brotli"}, "compression is 'brotli', but must be gzip, snappy, lz4, zstd or None"),
        ({"transactional_id": "mine"}, "transactional_id needs exactly_once"),
        ({"binary": True}, "set format = cloudevents"),
        ({"password": "s3cr3t"}, "need security_protocol SASL_SSL"),
        ({"ca": "ca.pem"}, "need security_protocol SSL"),
    ],
)
def test_what_cannot_work(options, says):
    """The error says what to do, and contains no secret."""
    with pytest.raises(ConfigurationError, match=says) as raised:
        KafkaSink(**options)
    assert "s3cr3t" not in str(raised.value)
