"""The choice of Java for a local Spark; the one from the wheel runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session import programs, sessions
from aiorepl.spark.session.programs import ensure_java, java_version

OLD, NEW, NEWEST = "1.8.0_392", "17.0.15", "25"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose only Java is what the test installs, with an environment of its own."""
    environment = tmp_path / "venv"
    environment.mkdir()
    monkeypatch.setattr(sys, "prefix", str(environment))
    # Set before deleted, so that what the code under test sets is taken back too.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    return tmp_path


def install(home: Path, version: str) -> Path:
    """Install a Java that prints its version, or its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("said", "version"), [(OLD, 8), ("11.0.1", 11), (NEW, 17), (NEWEST, 25), ("25-ea", 25)]
)
def test_version(tmp_path, said, version):
    """Both version schemes are parsed."""
    assert version == java_version(install(tmp_path, said) / "bin" / "java")


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nothing >&2\n", "not a program"])
def test_no_version(tmp_path, script):
    """A program called java that is none, as on macOS, is ignored."""
    program = tmp_path / "java"
    assert java_version(program) is None

    program.write_text(script)
    program.chmod(0o755)
    assert java_version(program) is None


def test_own_java_home_is_left_alone(machine, monkeypatch):
    """A suitable JAVA_HOME is used, whatever else there is."""
    install(machine / "path", NEWEST)
    home = str(install(machine / "home", NEW))
    monkeypatch.setenv("JAVA_HOME", home)

    assert home == str(ensure_java())
    assert home == os.environ["JAVA_HOME"]


def test_java_on_the_path(machine):
    """The home of the java on PATH is found, and exported for child processes."""
    home = install(machine / "path", NEW)

    assert home == ensure_java()
    assert str(home) == os.environ["JAVA_HOME"]


def test_any_java_without_the_module_gets_the_wrapper(machine, monkeypatch):
    """A runtime without the module rejects Spark's argument; with the wrapper it starts."""
    home = install(machine / "small", NEWEST)
    program = home / "bin" / "java"
    refuse = '#!/bin/sh\n[ "$1" = --add-modules=jdk.incubator.vector ] && exit 1\n'
    program.write_text(program.read_text().replace("#!/bin/sh\n", refuse))
    monkeypatch.setenv("JAVA_HOME", str(home))

    wrapped = ensure_java()

    assert machine / "venv" / "share" / "aiorepl" / "java-home" == wrapped
    assert 25 == java_version(wrapped / "bin" / "java", "--add-modules=jdk.incubator.vector")
    assert wrapped == ensure_java(), "a Java home like any other by now"


def test_java_on_the_path_over_an_old_java_home(machine, monkeypatch):
    """If JAVA_HOME is too old, it is changed, because Spark would use it."""
    monkeypatch.setenv("JAVA_HOME", str(install(machine / "home", OLD)))
    real = install(machine / "real", NEW)
    (machine / "path" / "bin").mkdir(parents=True)
    (machine / "path" / "bin" / "java").symlink_to(real / "bin" / "java")

    assert real == ensure_java()
    assert str(real) == os.environ["JAVA_HOME"]


def test_wheel_when_all_else_is_too_old(machine, monkeypatch):
    """If every Java is too old, the wheel's is used, through a folder in the virtual environment."""
    monkeypatch.setenv("JAVA_HOME", str(install(machine / "home", OLD)))
    install(machine / "path", OLD)

    home = ensure_java()

    assert machine / "venv" / "share" / "aiorepl" / "java-home" == home
    assert str(home) == os.environ["JAVA_HOME"]
    assert java_version(home / "bin" / "java") >= 17
    assert home == _again_with_nothing_written(home)


def _again_with_nothing_written(home: Path) -> Path | None:
    program, del_home = home / "bin" / "java", os.environ.pop("JAVA_HOME")
    before = program.stat().st_ino
    again = ensure_java()
    assert before == program.stat().st_ino
    assert del_home == os.environ["JAVA_HOME"]
    assert [program] == list(program.parent.iterdir())
    return again


@pytest.mark.parametrize("writable", [True, False], ids=["no venv", "not writable"])
def test_wheel_without_a_folder_of_our_own(machine, monkeypatch, writable):
    """Outside a virtual environment, or in another user's, the folder is temporary."""
    if writable:
        monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    else:
        (machine / "venv" / "share").write_text("in the way, for root as well")

    home = ensure_java()

    assert not home.is_relative_to(machine)
    assert not home.is_relative_to(sys.base_prefix)
    assert java_version(home / "bin" / "java") >= 17
    shutil.rmtree(home)


def test_nothing_at_all(machine, monkeypatch):
    """Without any Java one line says what was found, what is needed and what to do."""
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    install(machine / "path", OLD)

    with pytest.raises(ConfigurationError) as raised:
        ensure_java()

    text = str(raised.value)
    assert "Java 17 or later" in text
    assert f"{machine}/path/bin/java is Java 8" in text
    assert "pip install" in text
    assert "\n" not in text


def test_wrapper_drops_one_argument_and_keeps_the_rest(tmp_path):
    """Quotes, blanks and empty arguments are passed on unchanged."""
    program = tmp_path / "it's a java"
    program.write_text('#!/bin/sh\nfor argument do printf "[%s]" "$argument"; done\n')
    program.chmod(0o755)
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(programs.JAVA_WRAPPER.format(java=programs.shlex.quote(str(program))))
    wrapper.chmod(0o755)

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "", "a b", "--add-modules=other", "$HOME'\""]
    said = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout

    assert "[-Xmx1g][][a b][--add-modules=other][$HOME'\"]" == said


SESSION = """
from aiorepl.spark.session.programs import ensure_java
home = ensure_java()
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
session.conf.set("spark.sql.codegen.wholeStage", "false")
print("home:", home)
print("java:", session.sparkContext._jvm.java.lang.System.getProperty("java.version"))
print("rows:", session.range(1000).selectExpr("sum(id)").first()[0])
session.stop()
"""


@pytest.mark.xdist_group("spark-programs")
@pytest.mark.by_day
def test_spark_on_a_machine_without_java(tmp_path):
    """Without another Java, a session runs on the wheel's."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*") if os.access(folder, os.R_OK | os.X_OK) else []:
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK"))
    }
    # Compiling takes longer than this sum does.
    environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

    result = subprocess.run(
        [sys.executable, "-c", SESSION],
        env={**environment, "PATH": str(programs), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=280,
    )

    assert 0 == result.returncode, result.stderr
    said = dict(line.split(": ", 1) for line in result.stdout.splitlines())
    assert f"{sys.prefix}/share/aiorepl/java-home" == said["home"]
    assert "25" == said["java"].split(".")[0]
    assert "499500" == said["rows"]


def test_secrets_are_no_arguments_of_java(monkeypatch) -> None:
    """Java is started without the settings that hold secrets, because other users can see its arguments."""
    started: dict[str, str] = {}

    def launch(conf: Any) -> None:
        started.update(conf.getAll())
        raise InterruptedError

    monkeypatch.setattr(sessions, "ensure_java", Path)
    monkeypatch.setattr(sessions, "launch_gateway", launch)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setenv("PYSPARK_PYTHON", "python")
    conf = {
        "spark.hadoop.fs.s3a.secret.key": "planted",
        "spark.x.accessKey": "planted",
        "spark.executor.memory": "1g",
    }
    with pytest.raises(InterruptedError):
        sessions.cluster_session("name", "local[1]", conf)
    assert started["spark.executor.memory"] == "1g"
    assert "planted" not in started.values()


@pytest.mark.parametrize("start", [sessions.local_session, partial(sessions.cluster_session, "test")])
def test_a_user_without_a_name(start, monkeypatch):
    """The error names what is missing, because Hadoop's login fails in Java."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(ConfigurationError, match="the user 54321 in /etc/passwd, Spark's Java will not"):
        start()
