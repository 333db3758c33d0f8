"""Servers for the tests that are jars: from Maven Central into ``servers`` of this virtual environment.

Ivy, which is among pyspark's jars, fetches them. Each has to have its hash, and what they depend on is left out. As in
Spark, ``DEFAULT_ARTIFACT_REPOSITORY`` in the environment is a mirror to take instead of Maven Central.
"""

# ruff: noqa: INP001, S603, T201 - for programs

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from fetching import CannotBeHad, environment

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.programs import ensure_java

CENTRAL = "https://repo1.maven.org/maven2/"
SECONDS = 300

Pins = Mapping[tuple[str, str, str], str]
"""SHA-256 by organisation, name and version; a classifier stands behind the version and a colon."""


def put_in_place(server: str, pins: Pins) -> None:
    """Fetch ``server`` unless it is there; if it cannot be had, say why on standard error."""
    program = Path(sys.argv[0]).name
    target = environment() / "servers" / server
    try:
        if not complete(target, pins):
            fetch(target, pins)
            print(f"{program}: {server} is in {target}", file=sys.stderr)
    except (CannotBeHad, ConfigurationError) as reason:
        print(f"{program}: no {server} for the tests: {reason}", file=sys.stderr)


def complete(folder: Path, pins: Pins) -> bool:
    """Whether exactly these jars are there, unchanged."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")}
    return found == {
        f"{name}-{version.replace(':', '-')}.jar": digest for (_, name, version), digest in pins.items()
    }


def fetch(target: Path, pins: Pins) -> None:
    """Put the jars in place, all or none."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CannotBeHad("pyspark, whose Ivy would fetch it, is not installed")
    ivy = next(Path(spec.origin).parent.glob("jars/ivy-*.jar"), None)
    if ivy is None:
        raise CannotBeHad("there is no Ivy among pyspark's jars")
    java = ensure_java() / "bin" / "java"
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=target.parent) as temporary:
        folder = Path(temporary)
        (folder / "settings.xml").write_text(settings(), encoding="utf-8")
        (folder / "ivy.xml").write_text(wanted(pins), encoding="utf-8")
        command = [
            *(str(java), "-jar", str(ivy), "-settings", str(folder / "settings.xml")),
            *("-ivy", str(folder / "ivy.xml"), "-cache", str(folder / "cache")),
            *("-retrieve", f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        try:
            done = subprocess.run(
                command, env=os.environ, cwd=folder, capture_output=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotBeHad(f"Ivy: {type(error).__name__}") from None
        if done.returncode != 0:
            raise CannotBeHad("Ivy could not fetch it: is Maven Central within reach?")
        if not complete(folder / "jars", pins):
            raise CannotBeHad("the jars are not what their hashes say")
        shutil.rmtree(target, ignore_errors=True)
        (folder / "jars").rename(target)


def settings() -> str:
    """Where Ivy is to look."""
    root = quoteattr(os.environ.get("DEFAULT_ARTIFACT_REPOSITORY") or CENTRAL)
    return (
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" root={root}/></resolvers></ivysettings>'
    )


def wanted(pins: Pins) -> str:
    """What Ivy is to fetch: these, and not what they depend on."""
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="aiorepl" module="tests"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(map(dependency, pins))}</dependencies></ivy-module>"
    )


def dependency(pin: tuple[str, str, str]) -> str:
    """One of them."""
    organisation, name, version = pin
    revision, _, classifier = version.partition(":")
    artifact = (
        f'<artifact name="{name}" type="jar" ext="jar" m:classifier="{classifier}"/>' if classifier else ""
    )
    return (
        f'<dependency org="{organisation}" name="{name}" rev="{revision}" transitive="false" conf="default->master">'
        f"{artifact}</dependency>"
    )
