"""Lines of a stream of bytes, one at a time in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from osfmodel.entities.errors import DataError

LONGEST = 2**20
"""Maximum bytes of a line."""


def lines_of(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """(number, line, whether it ended) for each line that is not empty, from 1 on.

    Only the last line may lack its end. Raises DataError, with the number, for a line of more than LONGEST bytes.
    """
    number, held = 1, b""
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = held + whole[0]
            held = b""
        for line in whole:
            _require_short(number, line)
            if line.strip():
                yield number, line, True
            number += 1
        held += rest
        _require_short(number, held)
    if held.strip():
        yield number, held, False


def _require_short(number: int, line: bytes) -> None:
    if len(line) > LONGEST:
        raise DataError(f"line {number}: is longer than {LONGEST >> 20} MiB, the maximum for a line of a log")
