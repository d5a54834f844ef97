"""What really happened: iteration times of real runs, with the conditions under which they were taken."""

from __future__ import annotations

from dataclasses import dataclass, replace

from osfmodel.checks import require_count, require_name, require_time
from osfmodel.errors import DataError
from osfmodel.source import Source


@dataclass(frozen=True, slots=True)
class Measurement:
    """Iteration times of one set-up.

    workload, cluster, plan: the names of what was run
    samples:    seconds of each measured iteration
    warm_ups:   iterations before them that do not count
    conditions: (name, value) pairs: hardware, versions, settings; two runs are alike where these are equal
    """

    workload: str
    cluster: str
    plan: str
    workers: int
    samples: tuple[float, ...]
    warm_ups: int = 0
    conditions: tuple[tuple[str, str], ...] = ()
    source: Source = Source()

    def __post_init__(self) -> None:
        for name, what in ((self.workload, "workload"), (self.cluster, "cluster"), (self.plan, "plan")):
            require_name(name, f"the {what} of a measurement")
        require_count(self.workers, "workers of a measurement", least=1)
        require_count(self.warm_ups, "warm-ups of a measurement")
        if not self.samples:
            raise DataError(f"the measurement of {self.workload!r} has no samples")
        for sample in self.samples:
            require_time(sample, f"a sample of {self.workload!r}")

    @property
    def iteration_time(self) -> float:
        """The median of the samples: single iterations have outliers."""
        from statistics import median

        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest sample."""
        return min(self.samples), max(self.samples)

    def pooled(self, other: Measurement) -> Measurement:
        """Both sets of samples as one. Raises DataError, naming what differs, for runs that are not alike."""
        for field in ("workload", "cluster", "plan", "workers", "warm_ups", "conditions", "source"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                raise DataError(f"runs that differ in {field} cannot be pooled: {mine!r} and {theirs!r}")
        return replace(self, samples=self.samples + other.samples)
