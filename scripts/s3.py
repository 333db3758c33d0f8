"""A server with the API of S3 for the tests, as a jar in a folder of this virtual environment: ``servers/s3``.

S3Proxy speaks S3 over HTTP, signatures, conditional writes and multipart uploads included, and keeps objects as files.
Best effort, as ``servers.py``: without it the tests use moto's server instead. A second run finds it in place.
"""

# ruff: noqa: INP001 - a program

from __future__ import annotations

from maven import put_in_place

# Later ones are no better for this, and twice as large.
PINS = {
    (
        "org.gaul",
        "s3proxy",
        "2.9.0:jar-with-dependencies",
    ): "238f813ff9d6d295273f809f383d31307d88d8f56acc40109b68a5d49186a0eb",
}


if __name__ == "__main__":
    put_in_place("s3", PINS)
