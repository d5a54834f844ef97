"""The columns of memory: peaks, levels over a step, and plans for a batch size."""

from __future__ import annotations

from typing import NamedTuple

from osfmodel.engine.memory import Level, Memory
from osfmodel.entities.display import show_bytes, show_predicted, show_predicted_time, show_share
from osfmodel.planning.memory.budget import Candidate, MemoryTuning
from osfmodel.show.tables import Column, column

PEAKS: tuple[Column[Memory], ...] = (
    column("peak_bytes", "in all", lambda memory: memory.peak.bytes, show_bytes),
    column("peak_during", "when", lambda memory: memory.peak.during),
    column("peak_owners", None, lambda memory: dict(memory.peak.held)),
)
"""Columns of a plan's peak; on a terminal a line each, below the owners."""
LEVELS: tuple[Column[Level], ...] = (
    column("during", None, lambda level: level.during),
    column("start_s", None, lambda level: level.start),
    column("end_s", None, lambda level: level.end),
    column("bytes", None, lambda level: level.bytes),
)
"""Columns of a level."""
OWNERS_OF_LEVEL: Column[Level] = column("owners", None, lambda level: dict(level.held))
"""Column of a level's owners, only in JSON: CSV has no column for each owner."""


class FitRow(NamedTuple):
    """A plan that fits, and its role: ``before``, ``after`` or just ``tried``."""

    which: str
    candidate: Candidate


def compared(tuning: MemoryTuning) -> list[FitRow]:
    """DDP's defaults, if they fit, and the tuned plan."""
    found = [FitRow("after", tuning.after)]
    return found if tuning.before is None else [FitRow("before", tuning.before), *found]


CALLED = {"before": "DDP's defaults", "after": "tuned"}
"""Names of the two plans for people."""
WHICH: Column[FitRow] = column("which", "", lambda fit: fit.which, lambda which: CALLED.get(which, which))
FITS: tuple[Column[FitRow], ...] = (
    column("batch_size", "batch per worker", lambda fit: fit.candidate.batch_size),
    column("peak_bytes", "peak", lambda fit: fit.candidate.memory.peak.bytes, show_bytes),
    column("iteration_time_s", "iteration", lambda fit: fit.candidate.iteration_time, show_predicted_time),
    column("lower_bound_s", None, lambda fit: fit.candidate.bound),
    column("samples_per_s", "samples/s", lambda fit: fit.candidate.throughput, show_predicted),
    column("buckets", None, lambda fit: len(fit.candidate.plan.buckets)),
    column(None, "vs bound", lambda fit: fit.candidate.gap, show_share),
)
"""Columns of a plan that fits."""
SAVINGS: tuple[Column[FitRow], ...] = (
    column("release", None, lambda fit: fit.candidate.plan.release),
    column("recompute", None, lambda fit: list(fit.candidate.plan.recompute)),
    column("sparse", None, lambda fit: list(fit.candidate.sparse)),
)
"""Measures that save memory, in JSON alone."""
