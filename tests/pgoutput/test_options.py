"""The options of pgoutput: the newest that a server supports, and errors with the version that supports an option."""

from __future__ import annotations

import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.pgoutput.options import PluginOptions, Streaming, best_version

SERVERS = {10: 1, 11: 1, 12: 1, 13: 1, 14: 2, 15: 3, 16: 4, 17: 4, 18: 4}
FEATURES = [
    ("streaming=on", {"streaming": Streaming.ON}, 14, 2),
    ("streaming=parallel", {"streaming": Streaming.PARALLEL}, 16, 4),
    ("two_phase", {"two_phase": True}, 15, 3),
    ("binary", {"binary": True}, 14, 1),
    ("messages", {"messages": True}, 14, 1),
    ("origin", {"origin": "none"}, 16, 1),
    ("origin", {"origin": "any"}, 16, 1),
]
features = pytest.mark.parametrize(("name", "asked", "first", "version"), FEATURES)


@pytest.mark.parametrize(("server", "best"), SERVERS.items())
def test_defaults(server, best):
    """By default the server's newest version is used, without options that an older server rejects."""
    assert {"proto_version": str(best), "publication_names": '"p"'} == PluginOptions(("p",)).negotiate(server)


@pytest.mark.parametrize("server", SERVERS)
def test_control_messages(server):
    """Control messages are requested where the server supports messages, and are no error elsewhere."""
    assert (server >= 14) == ("messages" in PluginOptions(("p",), control_messages=True).negotiate(server))


def test_a_server_of_the_future():
    """A server newer than this library speaks the newest version that the library does."""
    assert 4 == best_version(19)


def test_a_server_without_pgoutput():
    """PostgreSQL 9.6 has no logical replication of its own."""
    with pytest.raises(ConfigurationError, match="begins with 10"):
        PluginOptions(("p",)).negotiate(9)


@pytest.mark.parametrize("server", SERVERS)
@features
def test_what_a_server_can_do(server, name, asked, first, version):
    """An option is passed on if the server has it, and else rejected with the version that has it."""
    options = PluginOptions(("p",), **asked)

    if server >= first:
        ((option, value),) = asked.items()
        sent = {True: "true"}.get(value) or getattr(value, "value", value)
        assert options.negotiate(server).items() >= {option: sent}.items()
    else:
        with pytest.raises(ConfigurationError) as caught:
            options.negotiate(server)
        assert f"{name} needs PostgreSQL {first} or later; this server is {server}" == str(caught.value)


@features
def test_what_a_version_can_do(name, asked, first, version):
    """An option that the chosen protocol version lacks is rejected with the version that has it."""
    for chosen in range(1, 5):
        options = PluginOptions(("p",), proto_version=chosen, **asked)
        if chosen >= version:
            assert str(chosen) == options.negotiate(18)["proto_version"]
        else:
            with pytest.raises(ConfigurationError) as caught:
                options.negotiate(18)
            assert f"{name} needs proto_version {version} or later, not {chosen}" == str(caught.value)


@pytest.mark.parametrize(("version", "first"), [(2, 14), (3, 15), (4, 16)])
def test_a_version_the_server_lacks(version, first):
    """A protocol version that the server lacks is rejected with the server version that has it."""
    options = PluginOptions(("p",), proto_version=version)

    assert str(version) == options.negotiate(first)["proto_version"]
    with pytest.raises(ConfigurationError) as caught:
        options.negotiate(first - 1)
    assert f"proto_version {version} needs PostgreSQL {first} or later; this server is {first - 1}" == str(
        caught.value
    )


@pytest.mark.parametrize("version", [0, 5, -1])
def test_a_version_that_does_not_exist(version):
    """The protocol has the versions 1 to 4."""
    with pytest.raises(ConfigurationError, match=f"proto_version {version} does not exist"):
        PluginOptions(("p",), proto_version=version)


def test_an_origin_that_does_not_exist():
    """Origin is any or none."""
    with pytest.raises(ConfigurationError, match="origin 'some' does not exist"):
        PluginOptions(("p",), origin="some")


@pytest.mark.parametrize("names", [(), ("",), ("p", "")])
def test_no_publication(names):
    """There must be one publication at least, and each must have a name."""
    with pytest.raises(ConfigurationError, match="at least one publication"):
        PluginOptions(names)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("orders",), '"orders"'),
        (("Orders", "orders"), '"Orders","orders"'),
        (("a,b", "c"), '"a,b","c"'),
        (('say "hi"',), '"say ""hi"""'),
        (("it's", "two words", "Größe"), '"it\'s","two words","Größe"'),
    ],
)
def test_publication_names(names, expected):
    """Names are quoted, so that commas, quotes, spaces and capitals mean themselves."""
    assert expected == PluginOptions(names).negotiate(18)["publication_names"]


def test_everything_at_once():
    """All options of version 4 together, in the order of PostgreSQL's pages."""
    options = PluginOptions(
        ("p",), streaming=Streaming.PARALLEL, two_phase=True, binary=True, messages=True, origin="none"
    )

    assert [
        ("proto_version", "4"),
        ("publication_names", '"p"'),
        ("binary", "true"),
        ("messages", "true"),
        ("streaming", "parallel"),
        ("two_phase", "true"),
        ("origin", "none"),
    ] == list(options.negotiate(18).items())
