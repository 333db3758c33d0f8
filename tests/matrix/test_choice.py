"""The ways that are tried stand for all of them, and tests of one server share a process."""

from __future__ import annotations


def test_every_pair_is_tried(version, pairs_left):
    """Each pair of settings that some way of a server has is in one that is tried."""
    assert set() == pairs_left


def test_a_group_has_one_process(version, request):
    """Where tests are spread over processes, those of one server are kept together."""
    spread = request.config.getoption("loadgroup", default=False)
    assert (f"@matrix-{version}" if spread else "") == request.node.nodeid.rpartition("]")[2]
