"""A process that lacks the artifact on its path finds it, as docs/spark/cluster.md says of streams under Spark Connect. Without Spark."""

from __future__ import annotations

import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.core.files import SparkFiles

from aiorepl.spark.reading import artifacts

MODULE = "class Reader:\n    pass\n"


class Source(artifacts.InArtifact):
    """An object that a process loads first."""

    def __init__(self) -> None:
        self.journal = "j"


def archive(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "shop.zip", "w") as file:
        file.writestr("shop_in_an_artifact.py", text)
    return folder / "shop.zip"


@pytest.mark.parametrize("root", ["streaming_job", "."], ids=["planning", "task"])
def test_found_beside(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The artifact is found by its contents, in the folders of all sessions."""
    archive(tmp_path / "another", "raise AssertionError('of another session')")
    wanted = archive(tmp_path / "session", MODULE)
    monkeypatch.setattr(sys, "path", [str(wanted), *sys.path])
    module: Any = __import__("shop_in_an_artifact")
    pickled = cloudpickle.dumps((module.Reader, {"table": "t"}))
    monkeypatch.delitem(sys.modules, "shop_in_an_artifact")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(wanted)])
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path / root))
    by_value = pickle.loads(cloudpickle.dumps(artifacts.rebuilt))
    assert by_value is not artifacts.rebuilt
    found = by_value("shop.zip", artifacts._digest(wanted), pickled)
    assert found.table == "t"
    assert str(wanted) in sys.modules["shop_in_an_artifact"].__file__  # type: ignore[operator]
    monkeypatch.delitem(sys.modules, "shop_in_an_artifact")


def test_another_version_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has imported another version of the package is refused; the same version serves both."""
    installed, wanted = tmp_path / "site", archive(tmp_path / "session", MODULE)
    installed.mkdir()
    monkeypatch.delitem(sys.modules, "shop_in_an_artifact", raising=False)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path / "."))
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    (installed / "shop_in_an_artifact.py").write_text(MODULE)
    module: Any = __import__("shop_in_an_artifact")
    given = "shop.zip", artifacts._digest(wanted), cloudpickle.dumps((module.Reader, {"table": "t"}))
    assert artifacts.rebuilt(*given).table == "t"
    (installed / "shop_in_an_artifact.py").write_text(f"{MODULE}\nnew = True\n")
    with pytest.raises(RuntimeError, match=f"another version than .* imported from {installed}: install"):
        artifacts.rebuilt(*given)


def test_only_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of an installed package is pickled as usual; one from an archive names the archive."""
    assert Source().__reduce_ex__(4)[0] is not artifacts.rebuilt
    wanted = archive(tmp_path / "session", MODULE)
    monkeypatch.setattr(artifacts, "__file__", f"{wanted}/aiorepl/spark/reading/artifacts.py")
    rebuild, (name, digest, _) = Source().__reduce_ex__(4)  # type: ignore[misc]
    assert (rebuild, name, digest) == (artifacts.rebuilt, "shop.zip", artifacts._digest(wanted))
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    assert pickle.loads(cloudpickle.dumps(Source())).journal == "j"
