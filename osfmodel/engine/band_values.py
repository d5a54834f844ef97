"""Values of error bands that were learned from the ledger, and their file, ``profiles/bands.json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from osfmodel.entities.files import documents, profiles

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Fractions of runs for which bands are kept."""


class Distances(NamedTuple):
    """Quantiles at LEVELS of how far measured runs lie below the fast and above the slow prediction (logarithms)."""

    kind: str
    without: str
    below: tuple[float, ...]
    above: tuple[float, ...]
    runs: int
    sources: tuple[str, ...]


class BandCell(documents.Strict):
    """Distances of runs of one kind of set-up from their predictions, at each level."""

    setup: str
    below: list[float]
    above: list[float]
    runs: int
    sources: list[str]
    without: str = ""


class BandsFile(documents.Strict):
    """The content of ``profiles/bands.json``."""

    schema_version: int
    kind: str
    levels: list[float]
    cells: list[BandCell]
    gains: dict[str, float] = {}  # noqa: RUF012


class BandValues(NamedTuple):
    """The content of ``profiles/bands.json``.

    gains: kind of set-up -> the part by which the ratio of two plans' times may be off, for PART of the pairs of plans,
           beyond what doubts of prices and computation make of it
    """

    distances: tuple[Distances, ...] = ()
    gains: Mapping[str, float] = MappingProxyType({})


def bands_document(distances: Iterable[Distances], gains: Mapping[str, float]) -> dict[str, Any]:
    """The JSON-ready form of ``profiles/bands.json``; distances are rounded up to a thousandth."""

    def up(values: Iterable[float]) -> list[float]:
        return [math.ceil(value * 1000) / 1000 for value in values]

    rows = [
        BandCell(one.kind, up(one.below), up(one.above), one.runs, list(one.sources), one.without) for one in distances
    ]
    doubts = dict(zip(gains, up(gains.values()), strict=True))
    made = BandsFile(documents.SCHEMA_VERSION, "bands", list(LEVELS), rows, doubts)
    return msgspec.to_builtins(made)  # type: ignore[no-any-return]


def decode_bands(text: bytes) -> BandValues:
    """The content of ``profiles/bands.json``. Raises DataError."""
    document = documents.decode(text, "bands", BandsFile)
    distances = tuple(
        Distances(row.setup, row.without, tuple(row.below), tuple(row.above), row.runs, tuple(row.sources))
        for row in document.cells
    )
    return BandValues(distances, document.gains)


@lru_cache(maxsize=1)
def bundled_bands() -> BandValues:
    """The values that come with osfmodel, from its ledger. Raises DataError."""
    return profiles.read(profiles.bundled_file("bands.json"), decode_bands)


@lru_cache(maxsize=1)
def bundled_distances() -> tuple[Distances, ...]:
    """The distances that come with osfmodel, of profiled and of counted workloads. Raises DataError."""
    counted = profiles.read(profiles.bundled_file("counted-bands.json"), decode_bands)
    return bundled_bands().distances + counted.distances
