"""Keys that are looked up again and again: of long tuples, whose hash is computed once."""

from __future__ import annotations

from collections.abc import Hashable


class Hashed:
    """A value that hashes as fast as a number."""

    __slots__ = ("_hash", "value")

    def __init__(self, value: Hashable) -> None:
        self.value, self._hash = value, hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Hashed) and self.value == other.value)
