"""Files packed with gzip, unpacked piece by piece in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from osfmodel.entities.errors import DataError
from osfmodel.entities.files import LARGEST_FILE

MAGIC = b"\x1f\x8b"
GZIP = 31
"""zlib's number for a gzip header with the largest window."""
PIECE = 2**16
"""Maximum bytes to unpack at once."""
STEP = 2**14
"""Packed bytes to take at once: the rest that does not fit into a piece is copied for the next."""

TIGHTEST, SUSPECT = 200, 2**28
"""Compression ratio and size from which a file is taken for one made to fill memory or time; traces
reach 25 times."""


def unpacked(content: bytes) -> bytes:
    """The unpacked content, or ``content`` itself. Raises DataError if it is cut, damaged or too large."""
    if not content.startswith(MAGIC):
        return content
    steps = (content[start : start + STEP] for start in range(0, len(content), STEP))
    return b"".join(limited(streamed(steps), LARGEST_FILE, "the maximum for a log or a profile"))


def limited(pieces: Iterable[bytes], limit: int, why: str) -> Iterator[bytes]:
    """``pieces``, up to ``limit`` bytes. Raises DataError, which ends in ``why``, if there are more."""
    room = limit
    for piece in pieces:
        room -= len(piece)
        if room < 0:
            raise DataError(f"is larger than {limit >> 20} MiB when unpacked, {why}")
        yield piece


def streamed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """``pieces`` unpacked, each of at most some 16 KiB; unchanged if they are not packed.

    Several gzip files behind each other are one. Raises DataError for what is cut or damaged.
    """
    rest = iter(pieces)
    start = next(rest, b"")
    while len(start) < len(MAGIC) and (more := next(rest, b"")):
        start += more
    if start.startswith(MAGIC):
        yield from _unpacked(start, rest)
    else:
        yield start
        yield from rest


def _unpacked(content: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    packer = zlib.decompressobj(GZIP)
    packed, given = len(content), 0

    def more() -> bytes:
        nonlocal packed
        piece = next(rest, b"")
        packed += len(piece)
        return piece

    while True:
        try:
            part = packer.decompress(content, PIECE)
        except zlib.error as error:
            raise DataError(f"begins like a gzip file but cannot be unpacked: {error}") from None
        given += len(part)
        if given > SUSPECT and given > TIGHTEST * packed:
            raise DataError(f"unpacks to more than {TIGHTEST} times its size, more than any log, profile or trace")
        yield part
        content = packer.unconsumed_tail
        if packer.eof:
            content = packer.unused_data or more()
            packer = zlib.decompressobj(GZIP)
            if not content or not MAGIC.startswith(content[: len(MAGIC)]):
                return  # padding, as gzip itself takes it
        elif not content and len(part) < PIECE:
            content = more()
            if not content:
                raise DataError("is a gzip file that was cut off")
