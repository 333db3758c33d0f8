"""The chosen ways stand for all of them, and the tests of one server share a process."""

from __future__ import annotations


def test_every_pair_is_tried(version, pairs_left):
    """Each pair of settings that a server supports is in a chosen way."""
    assert set() == pairs_left


def test_a_group_has_one_process(version, request):
    """If tests are distributed over processes, those of one server stay together."""
    spread = request.config.getoption("loadgroup", default=False)
    assert (f"@matrix-{version}" if spread else "") == request.node.nodeid.rpartition("]")[2]
