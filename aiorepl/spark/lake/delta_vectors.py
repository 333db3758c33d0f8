"""Deletion vectors of Delta: which rows of a data file are deleted, as 64-bit Roaring bitmaps. Uses pyroaring.

The layout is the protocol's: in a file, a byte with the version, and for each vector its size, the magic number, the bitmap, and a
CRC-32.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID, uuid4

from pyroaring import BitMap64

from aiorepl.errors import DataError
from aiorepl.spark.lake.delta_folder import DeltaFolder

PREFIX: Final = "deletion_vector_"
_MAGIC: Final = struct.pack("<i", 1681511377)
_VERSION: Final = b"\x01"
# The digits of Z85, which Delta uses, and those of base64.b85encode, which differ in nothing else.
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"

Descriptor = Mapping[str, Any]
"""The field ``deletionVector`` of an add or remove action."""


def identity(descriptor: Descriptor | None) -> str | None:
    """Return the unique id of a vector; a file with another vector is another file in the log."""
    if descriptor is None:
        return None
    offset = descriptor.get("offset")
    return (
        f"{descriptor['storageType']}{descriptor['pathOrInlineDv']}{'' if offset is None else f'@{offset}'}"
    )


def file_of(descriptor: Descriptor) -> str | None:
    """Return the file that has a vector, relative to the table or as a URI; ``None`` if the log itself has the vector."""
    kind, text = descriptor["storageType"], str(descriptor["pathOrInlineDv"])
    if kind == "i":
        return None
    if kind == "p":
        return text
    folder, encoded = text[:-20], text[-20:]
    name = f"{PREFIX}{UUID(bytes=_decoded(encoded)[:16])}.bin"
    return f"{folder}/{name}" if folder else name


def read(folder: DeltaFolder, descriptor: Descriptor | None) -> BitMap64:
    """Return the positions of the deleted rows.

    :raises DataError: the vector is damaged.
    """
    if descriptor is None:
        return BitMap64()
    path, size = file_of(descriptor), int(descriptor["sizeInBytes"])
    if path is None:
        data = _decoded(str(descriptor["pathOrInlineDv"]))[:size]
    else:
        with folder.open(path) as opened:
            opened.seek(int(descriptor.get("offset") or 0))
            framed = opened.read(size + 8)
        data = framed[4:-4]
        if struct.unpack(">i", framed[:4])[0] != size or struct.unpack(">I", framed[-4:])[0] != zlib.crc32(
            data
        ):
            raise DataError(f"the deletion vector {path} of {folder.target} is damaged")
    if data[:4] != _MAGIC:
        raise DataError(f"a deletion vector of {folder.target} is damaged, or has an unknown format")
    found: BitMap64 = BitMap64.deserialize(data[4:])
    return found


def write(folder: DeltaFolder, vectors: Iterable[BitMap64]) -> tuple[str, list[Descriptor]]:
    """Write vectors to a new file, and return its name and their descriptors."""
    name = uuid4()
    parts, offset = [_VERSION], len(_VERSION)
    found: list[Descriptor] = []
    for each in vectors:
        each.run_optimize()
        data = _MAGIC + each.serialize()
        parts += [struct.pack(">i", len(data)), data, struct.pack(">I", zlib.crc32(data))]
        found.append(
            {
                "storageType": "u",
                "pathOrInlineDv": b85encode(name.bytes).translate(bytes.maketrans(_B85, _Z85)).decode(),
                "offset": offset,
                "sizeInBytes": len(data),
                "cardinality": len(each),
            }
        )
        offset += len(data) + 8
    path = f"{PREFIX}{name}.bin"
    with folder.creating(path) as out:
        out.write(b"".join(parts))
    return path, found


def _decoded(text: str) -> bytes:
    return b85decode(text.encode().translate(bytes.maketrans(_Z85, _B85)))
