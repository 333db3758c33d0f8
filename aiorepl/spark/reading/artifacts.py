"""Lets streaming queries of Spark Connect import aiorepl from an artifact of their session.

Spark 4.2 gives batches the session's artifacts, but not streams: the process that plans a stream gets the folder of a session
named ``streaming_job``, and its tasks get no session's folder. The artifacts are on the same machines, in the folder of the
stream's own session. So the pickled objects that these processes load first contain a function, by value, that adds the
artifact to Python's path.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import Any, SupportsIndex

from pyspark import cloudpickle


def rebuilt(name: str, digest: bytes, pickled: bytes) -> Any:
    """Unpickle an object, after adding the artifact that has its class to Python's path.

    :param digest: the artifact's digest, because another session may have another file with this name.
    :raises RuntimeError: the process has already imported another version of the class's package.
    """
    # This function is pickled by value, so it has no globals.
    import hashlib
    import pickle
    import sys
    from pathlib import Path
    from zipfile import ZipFile

    from pyspark.core.files import SparkFiles

    root = Path(SparkFiles._root_directory or "").absolute()
    sessions = root.parent if root.name == "streaming_job" else root
    for path in (*map(Path, sys.path), *(folder / name for folder in sessions.glob("*"))):
        if path.name == name and path.is_file() and hashlib.sha256(path.read_bytes()).digest() == digest:
            if str(path) not in sys.path:
                sys.path.insert(1, str(path))
            break
    else:
        path = None
    kind, state = pickle.loads(pickled)  # noqa: S301 - from the session's own process
    loaded = Path(sys.modules[kind.__module__].__file__ or "")
    if path is not None and path not in loaded.parents:
        # A task of another session has already imported the package from where it is installed on this machine.
        installed = loaded.parents[kind.__module__.count(".")]
        with ZipFile(path) as archive:
            names = [each for each in archive.namelist() if each.endswith(".py")]
            for each in names if loaded.relative_to(installed).as_posix() in names else ():
                found = installed / each
                if not found.is_file() or found.read_bytes() != archive.read(each):
                    raise RuntimeError(
                        f"the artifact {name} has another version than the package that this process of Spark has imported from "
                        f"{installed}: install the artifact's version there, or none"
                    )
    made = object.__new__(kind)
    made.__dict__.update(state)
    return made


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class InArtifact:
    """Base of objects that a process can unpickle even if Python's path there lacks the artifact."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        archive = Path(__file__).parents[3]
        if archive.is_dir():  # a folder, not an artifact: aiorepl is installed
            return super().__reduce_ex__(protocol)
        pickled = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return rebuilt, (archive.name, _digest(archive), pickled)


@cache
def _digest(archive: Path) -> bytes:
    return hashlib.sha256(archive.read_bytes()).digest()
