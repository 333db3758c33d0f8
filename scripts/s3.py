"""A server with the API of S3: fetched into ``servers/s3`` of this virtual environment, or run.

    .venv/bin/python scripts/s3.py             fetch S3Proxy, which keeps objects as files, unless it is there
    .venv/bin/python scripts/s3.py --serve     run it, print its endpoint on a line, stop when the input ends

S3Proxy speaks S3 over HTTP, signatures, conditional writes and multipart uploads included. Best effort, as ``servers.py``:
where it cannot be had, moto's server is run instead, which does not look at signatures.
"""

# ruff: noqa: INP001 - a program

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from maven import complete, put_in_place
from serving import free_port, running, serve

from aiorepl.errors import ConfigurationError
from aiorepl.spark.session.programs import ensure_java

# Later ones are no better for this, and twice as large.
PINS = {
    (
        "org.gaul",
        "s3proxy",
        "2.9.0:jar-with-dependencies",
    ): "238f813ff9d6d295273f809f383d31307d88d8f56acc40109b68a5d49186a0eb",
}
ACCESS_KEY_ID, SECRET_ACCESS_KEY = "test", "test-secret"


def main() -> None:
    """Fetch or serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("bucket", nargs="*", help="buckets to begin with")
    arguments = parser.parse_args()
    if not arguments.serve:
        put_in_place("s3", PINS)
        return
    serve(serving(arguments.port, arguments.bucket))


@contextlib.contextmanager
def serving(port: int, buckets: list[str]) -> Iterator[str]:
    """A server until the end of the block; its endpoint."""
    folder = Path(sys.prefix, "servers", "s3")
    try:
        java = ensure_java() / "bin" / "java" if complete(folder, PINS) else None
    except ConfigurationError:
        java = None
    with contextlib.ExitStack() as stack:
        if java is None:
            endpoint = stack.enter_context(moto(port, buckets))
        else:
            endpoint = stack.enter_context(s3proxy(java, next(folder.glob("*.jar")), port, buckets))
        yield endpoint


@contextlib.contextmanager
def s3proxy(java: Path, jar: Path, port: int, buckets: list[str]) -> Iterator[str]:
    """S3Proxy with objects in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="s3proxy-") as temporary:
        folder = Path(temporary)
        for bucket in buckets:
            (folder / "objects" / bucket).mkdir(parents=True)
        (folder / "objects").mkdir(exist_ok=True)
        endpoint = f"http://127.0.0.1:{port or free_port()}"
        settings = {
            "s3proxy.endpoint": endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": ACCESS_KEY_ID,
            "s3proxy.credential": SECRET_ACCESS_KEY,
            "s3proxy.ignore-unknown-headers": "true",
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(folder / "objects"),
        }
        properties = folder / "s3proxy.conf"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-jar", jar]
        with running("S3Proxy", [*command, "--properties", properties], endpoint, folder / "log"):
            yield endpoint


@contextlib.contextmanager
def moto(port: int, buckets: list[str]) -> Iterator[str]:
    """Moto's server in this process."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        host, number = server.get_host_and_port()
        endpoint = f"http://{host}:{number}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY_ID,
            aws_secret_access_key=SECRET_ACCESS_KEY,
        )
        for bucket in buckets:
            client.create_bucket(Bucket=bucket)
        yield endpoint
    finally:
        server.stop()


if __name__ == "__main__":
    main()
