"""Finds a text in the files of a folder, also in Parquet files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def leaks(folder: Path, secret: str) -> list[str]:
    """Return the files that contain the secret, relative to the folder. Parquet files are decompressed first."""
    found = []
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        data = file.read_bytes()
        if file.suffix == ".parquet":
            data += str(pq.read_table(file).to_pylist()).encode() + str(pq.read_metadata(file)).encode()
        if secret.encode() in data:
            found.append(str(file.relative_to(folder)))
    return found
