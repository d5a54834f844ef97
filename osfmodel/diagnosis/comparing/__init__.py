"""Two runs, traces, benchmarks or predictions compared: the change, its noise, and the parts that changed."""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.diagnosis.comparing.comparison import RunComparison, compare_readings
from osfmodel.diagnosis.comparing.readings import COMPARABLE
from osfmodel.diagnosis.comparing.sources import Source, reading_of
from osfmodel.diagnosis.comparing.statistics import TOLERANCE
from osfmodel.entities.trace import Trace


def compare_runs(
    baseline: Source | Sequence[Source],
    candidate: Source | Sequence[Source],
    tolerance: float = TOLERANCE,
) -> RunComparison:
    """Compare a candidate with a baseline, each one run or several: traces, files, or names of bundled profiles.

    A trace is a file, a folder, a tar or a Trace; several runs of a side show how far runs of one job differ, so that
    smaller changes can be seen. ``tolerance``: relative change that does not matter. Raises DataError for a file
    without times, UsageError for files of different kinds.
    """
    baselines, candidates = ([reading_of(one) for one in _several(side)] for side in (baseline, candidate))
    return compare_readings(baselines, candidates, tolerance)


def _several(side: Source | Sequence[Source]) -> list[Source]:
    if isinstance(side, str | Trace) or not isinstance(side, Sequence):
        return [side]
    return list(side)


__all__ = ["COMPARABLE", "RunComparison", "compare_readings", "compare_runs", "reading_of"]
