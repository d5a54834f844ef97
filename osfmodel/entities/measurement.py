"""What really happened: iteration times or peak memory of real runs, and the conditions under which they were taken.

A file holds the runs of one source, with what they share said once:

{"schema_version": 1, "kind": "measurements", "name": "bcaffe", "source": {...}, "warm_ups": 0,
 "runs": [{"workload": .., "cluster": .., "plan": .., "workers": 8, "iteration_time_s": [..],
           "deviation_s": .., "conditions": {"batch_size": "64"}}]}
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import msgspec

from osfmodel.entities.checks import require_count, require_name, require_time
from osfmodel.entities.errors import DataError
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.source import Source

OF_ONE_REPEAT = ("repeat", "loss_difference")
"""Conditions in which repeats of one plan may differ."""
OF_ONE_TURN = (*OF_ONE_REPEAT, "buckets", "buckets_as_planned", "carried_by", "executor", "hooks", "sent", "settings")
"""Conditions in which turns of plans that were run beside each other may differ."""

UNKNOWN = "unknown"
"""The workload or the cluster of a run that was imported from a file which does not say enough to make one."""

WIDE = 0.2
"""A spread (quartiles over median) above which figures are not to be trusted, which is then said."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Iteration times of one set-up, or the peak of its memory.

    workload, cluster, plan: the names of what was run; UNKNOWN where what it was imported from gives none
    samples:    seconds of each measured iteration; one value where only a mean was published; none where what was
                measured is memory
    warm_ups:   iterations before them that do not count
    conditions: (name, value) pairs: hardware, versions, settings; two runs are alike where these are equal
    deviation:  standard deviation of the samples in seconds, where it was published beside their mean
    peak_bytes: the most bytes alive at once in an iteration, where that was measured
    """

    workload: str
    cluster: str
    plan: str
    workers: int
    samples: tuple[float, ...]
    warm_ups: int = 0
    conditions: tuple[tuple[str, str], ...] = ()
    source: Source = Source()
    deviation: float | None = None
    peak_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, what in ((self.workload, "workload"), (self.cluster, "cluster"), (self.plan, "plan")):
            require_name(name, f"the {what} of a measurement")
        require_count(self.workers, "workers of a measurement", least=1)
        require_count(self.warm_ups, "warm-ups of a measurement")
        if self.peak_bytes is not None:
            require_count(self.peak_bytes, f"peak bytes of {self.workload!r}", least=1)
        if not self.samples and self.peak_bytes is None:
            raise DataError(f"the measurement of {self.workload!r} has no samples")
        for sample in self.samples:
            require_time(sample, f"a sample of {self.workload!r}")
            if not sample:
                raise DataError(f"a sample of {self.workload!r} took no time at all")
        if self.deviation is not None:
            require_time(self.deviation, f"the deviation of {self.workload!r}")

    @property
    def measured(self) -> float:
        """What predictions are held against: the iteration time, or the peak where that alone was measured."""
        return self.iteration_time if self.samples or self.peak_bytes is None else self.peak_bytes

    @property
    def iteration_time(self) -> float:
        """The median of the samples: single iterations have outliers. Raises DataError where there are none."""

        if not self.samples:
            raise DataError(f"the measurement of {self.workload!r} is one of memory: it has no iteration times")
        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest sample."""
        return min(self.samples), max(self.samples)

    @property
    def shared_conditions(self) -> tuple[tuple[str, str], ...]:
        """Those that plans run by turns, and their repeats, have in common."""
        return tuple(pair for pair in self.conditions if pair[0] not in OF_ONE_TURN)

    def condition(self, name: str) -> str:
        """The value of a condition. Raises DataError where it is not stated."""
        for key, value in self.conditions:
            if key == name:
                return value
        raise DataError(f"the measurement of {self.workload!r} with {self.workers} workers does not state its {name}")

    def pooled(self, other: Measurement) -> Measurement:
        """Both sets of samples as one. Raises DataError, naming what differs, for runs that are not alike."""
        for field in ("workload", "cluster", "plan", "workers", "warm_ups", "conditions", "source", "deviation"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                raise DataError(f"runs that differ in {field} cannot be pooled: {mine!r} and {theirs!r}")
        return replace(self, samples=self.samples + other.samples)


class _RunDocument(documents.Strict):  # in the order in which a file shows them
    workload: str
    cluster: str
    plan: str
    workers: int
    iteration_time_s: list[float] = msgspec.field(default_factory=list)
    deviation_s: float | None = None
    peak_bytes: int | None = None
    conditions: dict[str, str] = msgspec.field(default_factory=dict)


class _Measurements(documents.Strict, kw_only=True):
    schema_version: int
    kind: str = ""
    name: str
    warm_ups: int = 0
    source: Source = Source()
    runs: list[_RunDocument]


def decode_measurements(text: bytes) -> tuple[Measurement, ...]:
    """A measurement file's content. Raises DataError saying what is wrong, and in which run."""
    document = documents.decode(text, "measurements", _Measurements)
    if not document.runs:
        raise DataError("holds no runs")
    found = []
    for number, row in enumerate(document.runs):
        try:
            found.append(
                Measurement(
                    row.workload,
                    row.cluster,
                    row.plan,
                    row.workers,
                    tuple(row.iteration_time_s),
                    document.warm_ups,
                    tuple(row.conditions.items()),
                    document.source,
                    row.deviation_s,
                    row.peak_bytes,
                )
            )
        except DataError as error:
            raise DataError(f"run {number}: {error}") from None
    return tuple(found)


def measurements_document(name: str, runs: Sequence[Measurement]) -> dict[str, Any]:
    """The JSON-ready form that :func:`decode_measurements` reads. Raises DataError where the runs share no source."""
    shared = {(run.source, run.warm_ups) for run in runs}
    if len(shared) != 1:
        raise DataError(f"the runs of {name!r} have {len(shared)} sources or warm-ups: a file holds those of one")
    ((source, warm_ups),) = shared
    rows = [
        _RunDocument(
            run.workload,
            run.cluster,
            run.plan,
            run.workers,
            list(run.samples),
            run.deviation,
            run.peak_bytes,
            dict(run.conditions),
        )
        for run in runs
    ]
    document = _Measurements(
        schema_version=documents.SCHEMA_VERSION,
        kind="measurements",
        name=name,
        warm_ups=warm_ups,
        source=source,
        runs=rows,
    )
    built: dict[str, Any] = msgspec.to_builtins(document)
    return built


def load_measurements(name_or_path: str | os.PathLike[str]) -> tuple[Measurement, ...]:
    """The bundled runs of a source by name, or those in a JSON file.

    Raises UsageError for an unknown name, DataError for a file that cannot be used.
    """
    return profiles.read_own(profiles.locate(name_or_path, "measurements"), decode_measurements, "measurements")


def save_measurements(name: str, runs: Sequence[Measurement], path: str | os.PathLike[str]) -> None:
    """Write measured runs as JSON that :func:`load_measurements` reads. Raises DataError; never leaves half a file."""
    profiles.write_text(path, documents.encode(measurements_document(name, runs)))


DEFAULTS = ("horovod", "ddp")
"""The plans that others are compared with, the first that there is: what one has without doing anything."""
