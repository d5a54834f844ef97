"""Files packed with gzip, unpacked in bounded memory."""

from __future__ import annotations

import zlib

from osfmodel.errors import DataError
from osfmodel.profiles import LARGEST_FILE

MAGIC = b"\x1f\x8b"
GZIP = 31
"""zlib's number for a gzip header and the largest window."""


def unpacked(content: bytes) -> bytes:
    """What is packed in ``content``, or itself. Raises DataError for what is cut, damaged or too large."""
    if not content.startswith(MAGIC):
        return content
    parts: list[bytes] = []
    room = LARGEST_FILE
    while content.startswith(MAGIC):
        part, content = _member(content, room + 1)
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise DataError(f"is larger than {LARGEST_FILE >> 20} MiB when unpacked, which no log or profile is")
    return b"".join(parts)


def _member(content: bytes, limit: int) -> tuple[bytes, bytes]:
    """The first member, up to ``limit`` bytes of it, and what follows it."""
    packer = zlib.decompressobj(GZIP)
    try:
        part = packer.decompress(content, limit)
    except zlib.error as error:
        raise DataError(f"begins like a gzip file but cannot be unpacked: {error}") from None
    if not packer.eof and len(part) < limit:
        raise DataError("is a gzip file that was cut off")
    return part, packer.unused_data
