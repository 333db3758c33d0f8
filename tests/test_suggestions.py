"""Names that are nearly right: the error says which one was meant."""

from __future__ import annotations

import subprocess
import sys

import pytest

import aiorepl
from aiorepl.errors import ConfigurationError
from aiorepl.formats import named
from aiorepl.pipeline.registry import load
from aiorepl.testing import MemorySink, MemorySource, Stream


@pytest.mark.parametrize(
    ("statement", "meant"),
    [
        ("import aiorepl; aiorepl.Pipelin", "Pipeline"),
        ("import aiorepl.spark; aiorepl.spark.regster", "register"),
    ],
)
def test_names_of_packages(statement, meant):
    """Python suggests a name that the package has, though it is imported on first use."""
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)

    assert f"Did you mean: '{meant}'?" in done.stderr


def test_options_of_connect():
    """An unknown option of ``connect`` is an error of ``connect``, which suggests an option."""
    with pytest.raises(
        TypeError, match=r"connect\(\) has no option 'create_slots': did you mean create_slot\?"
    ):
        aiorepl.connect(None, slot="s", publication="p", create_slots=True)
    with pytest.raises(TypeError, match=r"connect\(\) needs slot and publication"):
        aiorepl.connect("postgresql://host/db")


def test_options_of_mirror():
    """An unknown option of ``mirror`` is an error of ``mirror``, which suggests an option."""
    with pytest.raises(TypeError, match=r"mirror\(\) has no option 'modes': did you mean mode\?"):
        aiorepl.spark.mirror(None, "/journal", ["*.*"], "/lake", modes="current")


def test_sinks_and_formats():
    """A misspelled sink, format or option of a format is suggested."""
    with pytest.raises(ConfigurationError, match=r"no sink 'kafak' is installed: did you mean kafka\?"):
        load("kafak")
    with pytest.raises(ConfigurationError, match=r"did you mean debezium\?"):
        named("debezum")
    with pytest.raises(ConfigurationError, match=r"has no option decimal: did you mean decimals\?"):
        named({"type": "debezium", "decimal": "string"})


async def test_what_objects_say_of_themselves():
    """The repr of pipelines and streams has the slot, the sinks and the state."""
    source = MemorySource(stream=Stream())
    pipeline = aiorepl.Pipeline(source, {"archive": MemorySink()})

    assert f"<Pipeline {source.slot} to archive: starting>" == repr(pipeline)
    async with pipeline:
        assert repr(pipeline).endswith(" to archive: running>")
    assert repr(pipeline).endswith(" to archive: stopped>")
    stream = aiorepl.connect(source)
    assert f"<ReplicationStream {source.slot}: not entered>" == repr(stream)
    async with stream:
        assert f"<ReplicationStream {source.slot}: open, confirmed up to {stream.confirmed}>" == repr(stream)
    assert repr(stream).endswith(": closed>")
