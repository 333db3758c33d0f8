"""A mirror that spark-submit runs on a standalone cluster of real processes, while its executors are killed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from aiorepl.spark.session.programs import ensure_java
from aiorepl.testing.messages import column

pytestmark = [
    pytest.mark.xdist_group("spark-programs"),
    pytest.mark.usefixtures("quick_java"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc"),
]

ROOT = Path(__file__).parents[2]
ROWS = 20_000
OPTIONS = " ".join(
    f"--conf spark.{option}"
    for option in (
        "driver.host=127.0.0.1",
        "driver.bindAddress=127.0.0.1",
        "ui.enabled=false",
        "python.unix.domain.socket.enabled=true",
    )
)


@contextmanager
def daemon(log: Path, kind: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the cluster, which is killed at the end, with its executors."""
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                program,
                f"org.apache.spark.deploy.{kind}",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                *arguments,
            ],
            env=environment(),
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        executors = children(process.pid)
        process.kill()
        process.wait()
        for pid in executors:
            kill(pid)


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "sinks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "JAVA_HOME": str(ensure_java()),
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for each in found for pid in each.read_text().split()]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for(found: Callable[[], Any], process: subprocess.Popen[bytes], log: Path) -> Any:
    """Wait until something is there; the process must not end before."""
    for _ in range(4800):
        if result := found():
            return result
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        time.sleep(0.05)
    raise AssertionError(log.read_text(errors="replace")[-3000:])


@pytest.mark.by_day
def test_executors_that_are_killed(journal, worker_python, tmp_path, free_port) -> None:
    """An executor that is killed in the middle of a batch loses no row and gives none twice."""
    t = journal.stream.table("t", column("id", 23, key=True), column("note"))
    journal.stream.transaction(*(t.insert(str(key), f"note {key} {'x' * 40}") for key in range(ROWS)))
    journal.stream.transaction(t.update("1", "changed"), t.delete("2", None))
    journal.write(block_bytes=16_384)
    lake, port, http = tmp_path / "lake", free_port(), free_port()
    program = shutil.copytree(ROOT / "examples" / "spark_cluster", tmp_path / "program")
    archive(program, worker_python)
    file = program / "mirror.toml"
    file.write_text(file.read_text().replace("[mirror]", '[mirror]\npartition_bytes = "32KiB"'))

    documented = (
        (ROOT / "docs" / "spark" / "cluster.md")
        .read_text(encoding="utf-8")
        .partition("\n## spark-submit\n")[2]
    )
    (line,) = re.findall(r"^JOURNAL=.*$", documented, re.MULTILINE)
    for there, here in {
        "s3://shop/journal": str(journal.folder),
        "s3://shop/lake": str(lake),
        "master:7077": f"127.0.0.1:{port}",
        "127.0.0.1:8080": f"127.0.0.1:{http} --once",
    }.items():
        assert there in line
        line = line.replace(there, here)

    def submit(log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as output:
            return subprocess.Popen(
                line,
                shell=True,
                cwd=program,
                env=environment() | {"SPARK_OPTIONS": OPTIONS},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    with ExitStack() as stack:
        logs = [tmp_path / name for name in ("master", "one", "two", "mirror")]
        master = stack.enter_context(daemon(logs[0], "master.Master", "--port", str(port)))
        # A driver gives up after a minute without a master.
        wait_for(lambda: listening(port), master, logs[0])
        workers = [
            stack.enter_context(
                daemon(log, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / log.name) + "_work",
                       f"spark://127.0.0.1:{port}")
            )
            for log in logs[1:3]
        ]  # fmt: skip
        submitted = submit(logs[3])
        stack.callback(lambda: submitted.poll() is None and os.killpg(submitted.pid, signal.SIGKILL))
        staging = lake / "_checkpoint" / "_staging"
        wait_for(lambda: any(each.suffix == ".parquet" for each in staging.rglob("*")), submitted, logs[3])
        (executor,) = (pid for pid in children(workers[0].pid) if b"ExecutorBackend" in command(pid))
        kill(executor)
        assert 'aiorepl_spark_query_up{query="aiorepl mirror"} 1.0' in metrics(http)
        assert not (lake / "mirror.json").exists()
        assert submitted.wait(240) == 0, logs[3].read_text(errors="replace")[-3000:]
        expected = {key: f"note {key} {'x' * 40}" for key in range(ROWS) if key != 2}
        assert rows(lake) == expected | {1: "changed"}


def archive(folder: Path, interpreter: Path) -> None:
    """Create a minimal version of the environment of ``pack.sh``, with this Python."""
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(str(interpreter))} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(folder / "environment.tar.gz", "w:gz") as file:
        file.add(folder / "environment", ".")


def listening(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return answer.read().decode()


def rows(lake: Path) -> dict[int, str]:
    table = DeltaTable(lake / "public" / "t").to_pyarrow_table(columns=["id", "note"])
    found = dict(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))
    assert len(found) == table.num_rows
    return found
