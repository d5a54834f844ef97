"""Whether a step fits into the memory of a GPU: a chance, from how far published peaks lay from predicted ones.

``profiles/peaks.json`` has the quantiles of log(measured / predicted) of each kind of set-up, of all sources and
without each of them; each source weighs the same. ``profiles/make_peaks.py`` makes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from math import ceil, exp, log
from typing import Any, NamedTuple

import msgspec

from osfmodel.entities.files import documents, profiles
from osfmodel.entities.modules import ZERO, ZERO_3

YES, TIGHT, NO = "yes", "tight", "no"
"""Verdicts: a chance of SURE or more, between, and below 1 - SURE."""
SURE = 0.95
TAIL = 0.05
"""Error over which the chance of a larger one falls by e, beyond the quantiles that are kept: assumed."""
RETRY_SLOWDOWN = 5.2
"""Times as long as predicted that a step takes where PyTorch's allocator has to free its cache and ask again: the
median of the nine runs of nanotron that reserved more than 71 of 80 GiB (``benchmarks/layouts.py`` prints it)."""
LEVELS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975)
"""Parts of runs for which quantiles are kept."""
PROFILED, DATA, TENSOR, PIPELINE = "profiled", "data parallel", "tensor or context parallel", "pipeline"
"""Kinds of set-up: with measured layers; counted, by what divides a replica."""
UNSEEN = (ZERO[1], ZERO_3)
"""Strategies of which no source publishes a peak: as doubtful as the next kind of set-up, which has wider errors."""


class PeakCell(documents.Strict):
    """Runs of a kind of set-up: quantiles of log(measured / predicted) at each level, without a source or of all."""

    setup: str
    errors: list[float]
    runs: int
    sources: list[str]
    without: str = ""


class PeaksFile(documents.Strict):
    """The content of ``profiles/peaks.json``.

    reserved: bytes that PyTorch's allocator reserves for each byte that a step is predicted to hold, by kind of set-up
    """

    schema_version: int
    kind: str
    levels: list[float]
    reserved: dict[str, float]
    cells: list[PeakCell]


class JudgedPeak(NamedTuple):
    """A published peak.

    error: log(measured / predicted)
    seen:  whether it is known; else the run only counts among those of its source
    """

    source: str
    setup: str
    error: float
    seen: bool = True


def setup_of(profiled: bool, groups: tuple[int, int, int] = (1, 1, 1), strategy: str = "") -> str:
    """The kind of a set-up; ``groups``: of tensor, context and pipeline parallelism. UNSEEN ones are like TENSOR."""
    tensor, context, pipeline = groups
    divided = tensor * context > 1 or strategy in UNSEEN
    return PROFILED if profiled else PIPELINE if pipeline > 1 else TENSOR if divided else DATA


def reserved_of(size: int, setup: str) -> int:
    """Bytes that PyTorch's caching allocator usually reserves in a step that holds ``size`` bytes at its peak."""
    return round(size * bundled_peaks().reserved[setup])


def chance_to_fit(reserved: int, room: int, setup: str, without: str = "") -> float:
    """The chance that a step that reserves so many bytes by prediction finds ``room`` bytes enough.

    Between quantiles it is linear in the logarithm of the error; what is beyond them falls by e for each TAIL of it.
    """
    if reserved <= 0:
        return 1.0
    return _part_below(log(room / reserved), cell_of(setup, without).errors)


def verdict_of(chance: float) -> str:
    """YES, TIGHT or NO."""
    return YES if chance >= SURE else TIGHT if chance > 1 - SURE else NO


def slowed(chance: float) -> float:
    """The factor on a step's time to expect where memory is TIGHT: of those without room, RETRY_SLOWDOWN; else 1."""
    return 1 + (1 - chance) * (RETRY_SLOWDOWN - 1) if verdict_of(chance) == TIGHT else 1.0


def safe_bytes(room: int, setup: str) -> int:
    """The most that a step may hold by prediction to fit surely into ``room`` bytes."""
    return int(room * exp(-cell_of(setup).errors[LEVELS.index(SURE)] - TAIL / 1e3) / bundled_peaks().reserved[setup])


def cell_of(setup: str, without: str = "") -> PeakCell:
    """The errors of a kind of set-up, without a source where it had a part in them."""
    found = {one.without: one for one in bundled_peaks().cells if one.setup == setup}
    return found.get(without, found[""])


def _part_below(value: float, errors: list[float]) -> float:
    """The part of runs with an error up to ``value``."""
    if value < errors[0]:
        return LEVELS[0] * exp((value - errors[0]) / TAIL)
    if value >= errors[-1]:
        return 1 - (1 - LEVELS[-1]) * exp((errors[-1] - value) / TAIL)
    place = min(max(bisect_right(errors, value), 1), len(errors) - 1)
    low, high = errors[place - 1 : place + 1]
    part = 0.0 if high <= low else (value - low) / (high - low)
    return LEVELS[place - 1] + (LEVELS[place] - LEVELS[place - 1]) * part


def peaks_document(judged: Iterable[JudgedPeak], reserved: dict[str, float]) -> dict[str, Any]:
    """The JSON-ready form of ``profiles/peaks.json``; quantiles are rounded up to a thousandth."""
    runs = list(judged)
    cells = []
    for setup in dict.fromkeys(run.setup for run in runs):
        own = [run for run in runs if run.setup == setup]
        sources = sorted({run.source for run in own})
        for without in ("", *sources):
            kept = [run for run in own if run.source != without]
            if any(run.seen for run in kept):
                there = sorted({run.source for run in kept})
                cells.append(PeakCell(setup, _quantiles(kept), len(kept), there, without))
    made = PeaksFile(documents.SCHEMA_VERSION, "peaks", list(LEVELS), reserved, cells)
    return msgspec.to_builtins(made)  # type: ignore[no-any-return]


def _quantiles(runs: list[JudgedPeak]) -> list[float]:
    """Quantiles at LEVELS in which each source weighs the same, less its part of runs that are not seen."""
    each = {source: sum(run.source == source for run in runs) for source in {run.source for run in runs}}
    ordered = sorted((run.error, 1 / each[run.source]) for run in runs if run.seen)
    every = sum(share for _, share in ordered)
    found, places = [], iter(LEVELS)
    level, weight = next(places), 0.0
    for error, share in ordered:
        weight += share / every
        while weight >= level - 1e-9:
            found.append(ceil(error * 1000) / 1000)
            following = next(places, None)
            if following is None:
                return found
            level = following
    return found


def decode_peaks(text: bytes) -> PeaksFile:
    """The content of ``profiles/peaks.json``. Raises DataError."""
    return documents.decode(text, "peaks", PeaksFile)


@lru_cache(maxsize=1)
def bundled_peaks() -> PeaksFile:
    """The errors that come with osfmodel. Raises DataError."""
    return profiles.read(profiles.bundled_file("peaks.json"), decode_peaks)
