"""Messages of Protocol Buffers in a stream of bytes, one behind the other, each behind its length.

Only what the encoding itself says is read: numbers of fields with whole numbers, bytes, or values of fixed width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from osfmodel.entities.errors import DataError

LONGEST = 2**24
"""Maximum bytes of a message."""
MOST_DIGITS = 10
"""Maximum bytes of a whole number."""
FIXED = {1: 8, 5: 4}
"""Bytes of the types of values with a fixed width."""
WHOLE, BYTES = 0, 2
"""Types of values: whole numbers, and bytes behind their length."""


def delimited(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """(number, message, whether it is whole) for each message, from 0 on; only the last may be cut off.

    Raises DataError for lengths that no message has.
    """
    rest = iter(pieces)
    held, place, number = b"", 0, 0
    while True:
        try:
            length, start = varint(held, place)
            cut = start + length > len(held)
        except IndexError:
            length, start, cut = 0, place, True
        except DataError as error:
            raise DataError(f"message {number}: {error}") from None
        if length > LONGEST:
            raise DataError(f"message {number}: is longer than {LONGEST >> 20} MiB, the maximum for a node")
        if not cut:
            yield number, held[start : start + length], True
            place, number = start + length, number + 1
            continue
        more = _taken(rest, max(1, start + length - len(held)))
        held, place = held[place:] + more, 0
        if not more:
            if held:
                yield number, held, False
            return


def _taken(rest: Iterator[bytes], count: int) -> bytes:
    """The next pieces with so many bytes at least, if there are so many."""
    found: list[bytes] = []
    while count > 0 and (piece := next(rest, None)) is not None:
        found.append(piece)
        count -= len(piece)
    return b"".join(found)


def varint(content: bytes, place: int) -> tuple[int, int]:
    """A whole number at a place, and the place behind it. Raises IndexError where the content ends before it does."""
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
        shift += 7
        if shift >= 7 * MOST_DIGITS:
            raise DataError("has a number of more than 64 bits")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field in order: whole numbers as such, all else as bytes.

    Raises DataError for a message that is damaged.
    """
    place, end = 0, len(message)
    while place < end:
        try:
            key, place = varint(message, place)
            kind = key & 7
            if kind == WHOLE:
                value, place = varint(message, place)
                yield key >> 3, value
                continue
            if kind == BYTES:
                length, place = varint(message, place)
            elif kind in FIXED:
                length = FIXED[kind]
            else:
                raise DataError(f"has a field of type {kind}, which no message has")
        except IndexError:
            raise DataError("ends within a number") from None
        if place + length > end:
            raise DataError("ends within a field")
        yield key >> 3, message[place : place + length]
        place += length
