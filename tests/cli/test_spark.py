"""``aiorepl spark mirror``: its file is checked before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import aiorepl
from aiorepl.cli import main
from aiorepl.cli.mirror_example import EXAMPLE
from aiorepl.cli.mirror_file import load
from aiorepl.errors import ConfigurationError
from aiorepl.retry import RetryPolicy
from aiorepl.storage.objects.location import ObjectStore

JOURNAL = "[journal]\nurl = 'journal'\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def written(tmp_path):
    """``written(text)``: a file."""

    def write(text: str) -> Path:
        path = tmp_path / "mirror.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_example(written, capsys) -> None:
    """The example is printed, is the file in examples/, and is valid."""
    with pytest.raises(SystemExit) as ended:
        main(["spark", "mirror", "--example"])
    assert (ended.value.code, capsys.readouterr().out) == (0, EXAMPLE)
    assert (ROOT / "examples" / "mirror.toml").read_text(encoding="utf-8") == EXAMPLE
    with pytest.raises(SystemExit) as ended:
        main(["spark", "mirror", "--check", str(written(EXAMPLE))])
    assert ended.value.code == 0


def test_options(written) -> None:
    """Each table of the file becomes what it says."""
    loaded = load(
        written(
            """
            [journal]
            url = "s3://bucket/journal"
            config = { region = "x" }
            [mirror]
            tables = ["public.*", "!public.sessions"]
            target = { url = "s3://lake/a", config = { region = "x" } }
            max_bytes = "1MiB"
            [mirror.mode]
            "*.audit_*" = "changelog"
            "*.*" = "history"
            [mirror.keys]
            "public.log" = ["id"]
            [mirror.layout."public.t"]
            partition_by = ["day"]
            [retry]
            wait_max = 5
            [spark]
            interval = "5s"
            """
        )
    )
    mirror = loaded.mirror
    assert mirror.journal == ObjectStore("s3://bucket/journal", {"region": "x"})
    assert mirror.target == ObjectStore("s3://lake/a", {"region": "x"})
    assert mirror.max_bytes == 1024**2
    assert dict(mirror.mode) == {"*.audit_*": "changelog", "*.*": "history"}
    assert mirror.layout["public.t"].partition_by == ("day",)
    assert loaded.retry == RetryPolicy(wait_max=5)
    assert loaded.interval == 5


def test_iceberg(written, tmp_path) -> None:
    """A section names the catalog of Iceberg tables, which is opened at its first use."""
    loaded = load(
        written(
            JOURNAL
            + f"""
            [mirror]
            tables = ["public.*"]
            target = "state"
            [iceberg]
            catalog = "lake"
            prefix = "mirror_"
            retain = "1m"
            properties = {{ type = "sql", uri = "sqlite:///{tmp_path}/catalog", warehouse = "file://{tmp_path}" }}
            """
        )
    )
    assert not (tmp_path / "catalog").exists()
    table = loaded.mirror.lake.table(("public", "t"))
    assert (table.identifier, table.schema()) == (("mirror_public", "t"), None)
    assert table._upkeep.retain == 60


def test_iceberg_without_a_package(written, monkeypatch, capsys) -> None:
    """A catalog's missing package is named before Spark starts."""
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.glue", None)
    monkeypatch.setattr(aiorepl.spark, "local_session", lambda **_: pytest.fail("Spark was started"))
    text = (
        JOURNAL + "[mirror]\ntables = ['public.*']\ntarget = 'state'\n[iceberg.properties]\ntype = 'glue'\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["spark", "mirror", str(written(text))])
    assert ended.value.code == 2
    assert "pip install 'pyiceberg[glue]'" in capsys.readouterr().err


def test_iceberg_that_does_not_answer(written, monkeypatch) -> None:
    """A catalog that cannot be reached does not keep Spark from starting: the query is tried again."""
    monkeypatch.setattr(aiorepl.spark, "local_session", lambda **_: "session")
    text = JOURNAL + "[mirror]\ntables = ['public.*']\ntarget = 'state'\n[iceberg.properties]\n"
    loaded = load(written(text + "type = 'rest'\nuri = 'http://127.0.0.1:9'\n"))
    assert loaded.session() == "session"


def test_every_error_at_once(written, capsys) -> None:
    """All errors of a file are reported, each with its key; the exit code is that of a wrong configuration."""
    path = written(
        """
        [mirror]
        tables = ["public"]
        target = "lake"
        colour = "red"
        [spark]
        master = "spark://host"
        cores = 2
        [other]
        """
    )
    with pytest.raises(SystemExit) as ended:
        main(["spark", "mirror", str(path)])
    errors = capsys.readouterr().err
    assert ended.value.code == 2
    for key in (
        "other: unknown",
        "spark.cores: is for a local Spark",
        "journal: missing",
        "mirror.colour: unknown",
    ):
        assert key in errors
    with pytest.raises(SystemExit):
        main(["spark", "mirror", str(written(JOURNAL + "[mirror]\ntables = ['public']\ntarget = 'lake'\n"))])
    assert "mirror: tables: '…' is not a valid pattern" in capsys.readouterr().err


def test_without_a_journal(written, tmp_path, monkeypatch, capsys, caplog) -> None:
    """``--once`` says at once that there is no journal, before Spark starts; without it, the mirror waits, and says so, too."""

    def no_spark(*_: object) -> None:
        raise ConfigurationError("Spark starts")

    monkeypatch.setattr("aiorepl.cli.mirror_file._session", no_spark)
    path = written(
        f"[journal]\nurl = '{tmp_path / 'none'}'\n[mirror]\ntables = ['*.*']\ntarget = '{tmp_path / 'lake'}'\n"
    )
    missing = f"there is no journal in {tmp_path / 'none'}: check the path"
    for options, code in (["--once"], 1), ([], 2):
        with pytest.raises(SystemExit) as ended:
            main(["spark", "mirror", *options, str(path)])
        told = capsys.readouterr().err + caplog.text
        assert (code, True, bool(not options)) == (
            ended.value.code,
            missing in told,
            "Spark starts" in told,
        ), told
