"""Promised against measured differences of plans that ran on the same set-up: published runs and live draws.

    python benchmarks/gains.py [FOLDER/runs.json ...]      # those of osf tune --live FOLDER are judged beside them

A pair is two plans (or bucket caps, strategies, thresholds) of one workload, cluster and number of workers. Its promise
is the difference of both predictions, its interval is that of ``osf tune``, learned without the pair's own machines.
Sign: of the pairs whose measured times differ by more than 3 %. Kept: measured over promised where 2 % or more was
promised, the median. Factor: the same of all *other* machines, by which a promise would be shrunk, and what the mean
distance from the measured gain would be with it and without.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "profiles")]

from make_bands import JudgedPair, gains, pairs, place_of, usual  # noqa: E402

from osfmodel.entities.files.measurements import load_measurements  # noqa: E402
from osfmodel.entities.measurement import PROMISED_GAIN  # noqa: E402

DEFAULT, AS_PROMISED = "ddp", "as promised"
"""The default's plan; the place of a pair whose interval was given before it ran, and is not widened."""
APART, PROMISED = math.log(1.03), 0.02
"""Logarithm of the ratio of measured times beyond which the sign counts; a promise that can be kept in part."""


class Judged(NamedTuple):
    """The pairs of a source: those that differ, signs that are right, the part inside, and the factor of others."""

    source: str
    rows: Sequence[JudgedPair]
    apart: int
    signs: int
    inside: float
    factor: float

    @property
    def row(self) -> str:
        """As cells of a table."""
        distances = f"{off(self.rows, 1):.1%} | {off(self.rows, self.factor):.1%} |"
        counts = f"{len(self.rows)} | {self.apart} | {self.signs} | {self.inside:.0%}"
        return f"| {self.source} | {counts} | {kept(self.rows):.2f} | {self.factor:.2f} | {distances}"


def promised(path: str) -> JudgedPair:
    """The pair of ``osf tune --live``: its default and the tuned plan, with the interval that was promised."""
    runs = load_measurements(path)
    tuned = [run for run in runs if PROMISED_GAIN in dict(run.conditions)]
    if not tuned:
        raise SystemExit(f"{path}: no run says what was promised: write it with 'osf tune --live FOLDER'")
    middle, low, high = (math.log1p(-float(part)) for part in tuned[0].condition(PROMISED_GAIN).split())
    default = [run.iteration_time for run in runs if run.plan == DEFAULT]
    measured = math.log(median(run.iteration_time for run in tuned) / median(default))
    return JudgedPair(path, path, AS_PROMISED, middle, measured, max(high - measured, measured - low, 0.0))


def kept(rows: Sequence[JudgedPair]) -> float:
    """The median part of a promise that was measured, of promises that are large enough; nan without any."""
    parts = [row.measured / row.predicted for row in rows if abs(row.predicted) >= PROMISED]
    return median(parts) if parts else math.nan


def off(rows: Sequence[JudgedPair], factor: float) -> float:
    """The mean distance, as a fraction of a step, of the promise times ``factor`` from the measured difference."""
    return fmean(abs(row.predicted * factor - row.measured) for row in rows)


def lines(rows: Sequence[JudgedPair]) -> Iterator[str]:
    """A table with a row for each source, and the sums."""
    yield "| source | pairs | differ by 3 % | sign right | inside | kept | factor of others | off | with it |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    found = []
    for source in dict.fromkeys(row.source for row in rows):
        own = [row for row in rows if row.source == source]
        others = [row for row in rows if row.group != own[0].group]
        doubts = gains([row for row in others if row.kind != AS_PROMISED])
        unknown = max(doubts.values(), default=0.0)
        doubts[AS_PROMISED] = 0.0
        apart = [row for row in own if abs(row.measured) > APART]
        signs = sum(row.measured * row.predicted > 0 for row in apart)
        inside = fmean(row.outside <= math.log1p(doubts.get(place_of(row.kind), unknown)) for row in own)
        one = Judged(source, own, len(apart), signs, inside, kept(others))
        found.append(one)
        yield one.row
    apart, signs = sum(one.apart for one in found), sum(one.signs for one in found)
    alone, shrunk = fmean(off(one.rows, 1) for one in found), fmean(off(one.rows, one.factor) for one in found)
    yield (
        f"\nSign right in {signs} of {apart} pairs ({signs / apart:.0%}). Means of sources: "
        f"inside {fmean(one.inside for one in found):.0%}; off {alone:.2%}, shrunk {shrunk:.2%}."
    )
    for said, emulated in (("published", False), ("emulated", True)):
        those = [one for one in found if one.source.startswith("emulated-") == emulated]
        if those:
            pairs, held = sum(len(one.rows) for one in those), sum(one.inside * len(one.rows) for one in those)
            signs, apart = sum(one.signs for one in those), sum(one.apart for one in those)
            yield f"Of {said} runs: sign right in {signs} of {apart} pairs, inside {held:.0f} of {pairs}."


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="further runs that say what was promised: FOLDER/runs.json of --live")
    arguments = parser.parse_args(words)
    print("\n".join(lines([*pairs(usual()), *map(promised, arguments.runs)])))


if __name__ == "__main__":
    main()
