"""Names of transform functions."""

from __future__ import annotations

import json

import pytest

from aiorepl import ConfigurationError, Delivery
from aiorepl.testing.faults import MemorySink
from aiorepl.transforms.function import load


def test_a_function_by_its_name():
    """The function is imported."""
    assert json.dumps is load("json:dumps")


@pytest.mark.parametrize("named", ["nothing", "no.such.module:f", "json:nothing", "json:"])
def test_a_name_of_no_function(named):
    """A name that cannot be imported is refused when the delivery is created."""
    with pytest.raises(ConfigurationError, match="transform"):
        Delivery(MemorySink(), transform=named)
