"""Measurements of real runs with their conditions, and the source of figures, which workloads and clusters have too."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from zlib import crc32

from osfmodel.entities.display import brief, how_many, show_bytes, show_time
from osfmodel.entities.errors import DataError, require_count, require_name, require_time

IMPORTED = "imported from "
"""Prefix of the origin of figures that were imported from another tool's file."""
NO_GPU = "none (CPU)"
CRC = "crc32"
CHECKSUM = re.compile(rf"(?<=, ){CRC} [0-9a-f]{{8}}$")
TELLING = 65_536
"""Bytes at the start of a file that its checksum covers: enough to tell it from others of its name."""


@dataclass(frozen=True, slots=True)
class Source:
    """Provenance of a profile.

    origin:      who measured it and where it is published (repository, path, commit; paper, table)
    conditions:  hardware, software and settings under which it was measured, and what was done to it since
    licence:     the terms under which the figures were published
    gpu:         the GPU that they are of; NO_GPU if they are of a CPU
    """

    origin: str = "not stated"
    conditions: str = "not stated"
    licence: str = "not stated"
    gpu: str = "not stated"

    __repr__ = brief

    def __post_init__(self) -> None:
        for name in ("origin", "conditions", "licence", "gpu"):
            if not getattr(self, name).isprintable():
                raise DataError(f"the {name} of a source has characters that cannot be printed")

    @property
    def is_import(self) -> bool:
        """Whether ``osf import`` wrote it."""
        return self.origin.startswith(IMPORTED)

    def same_import(self, other: Source) -> bool:
        """Whether both are imports of the same file, packed or not."""
        if not (self.is_import and other.is_import):
            return False
        mine, others = (CHECKSUM.search(origin) for origin in (self.origin, other.origin))
        return mine[0] == others[0] if mine and others else self.origin == other.origin


def imported(file: str, conditions: str, checksum: str = "") -> Source:
    """The source of an import from ``file``, which does not state a licence.

    ``checksum`` distinguishes files of the same name, such as the rank0.json of every job.
    """
    return Source(", ".join(filter(None, (IMPORTED + file, checksum))), conditions)


def checksum_of(start: bytes) -> str:
    """Checksum of a file that begins with ``start``, over its first 64 KiB."""
    return f"{CRC} {crc32(start[:TELLING]):08x}"


CPU_SHARE = "cpu_share"
"""Condition: processor time of the ranks of a machine, over that of its cores."""
SATURATED = 0.9
"""Share above which ranks are taken to have waited for cores, so that the run says little of the network."""
LOGGED, SPREAD = "logged", "spread"
"""Conditions of a run out of a trainer's log: lines with a step, and half of what lies between quartiles, relative."""
OF_ONE_REPEAT = ("repeat", "loss_difference", CPU_SHARE, LOGGED, SPREAD)
"""Conditions in which repeats of one plan may differ."""
OF_ONE_TURN = (
    *OF_ONE_REPEAT, "buckets", "buckets_as_planned", "carried_by", "collectives", "executor", "hooks", "sent",
    "promised_gain", "settings", "sharded_computation_s",
)  # fmt: skip
"""Conditions in which turns of plans that ran side by side may differ."""

PROMISED_GAIN = "promised_gain"
"""Gain over the default that was predicted before the run, and the ends of its 90 % interval: three fractions."""
COMPUTATION = "computation_s"
"""Condition of a run: seconds of an iteration of the bare model, without communication, on the run's own load."""

SHARDED_COMPUTATION = "sharded_computation_s"
"""Condition of a run under FSDP2: seconds of the same with the plan's shards, and with FSDP2's own work on the host."""

UNKNOWN = "unknown"
"""Placeholder name of a workload or cluster that the imported file does not describe."""

WIDE = 0.2
"""Spread (quartiles over median) above which a warning says not to trust the figures."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Iteration times of one set-up, or the peak of its memory.

    workload, cluster, plan: names; UNKNOWN if the imported file gives none
    samples:    seconds of each measured iteration; one value if only a mean was published; none for a
                measurement of memory
    warm_ups:   iterations before them that do not count
    conditions: (name, value) pairs: hardware, versions, settings; two runs are alike if these are equal
    deviation:  standard deviation of the samples in seconds, if it was published beside their mean
    peak_bytes: maximum bytes alive at once in an iteration, if measured
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

    def __repr__(self) -> str:
        found = f"{show_time(self.iteration_time)} ({how_many(len(self.samples), 'sample')})" if self.samples else ""
        peak = "" if self.peak_bytes is None else f"peak {show_bytes(self.peak_bytes)}"
        run = f"{self.workload} on {self.cluster} under {self.plan}, {how_many(self.workers, 'worker')}"
        return brief(self, f"{', '.join(filter(None, (found, peak)))}: {run}")

    @property
    def measured(self) -> float:
        """The iteration time, or the peak if only that was measured."""
        return self.iteration_time if self.samples or self.peak_bytes is None else self.peak_bytes

    @property
    def iteration_time(self) -> float:
        """The median of the samples, since single iterations have outliers. Raises DataError without samples."""

        if not self.samples:
            raise DataError(f"the measurement of {self.workload!r} is one of memory: it has no iteration times")
        from statistics import median  # loads what a command's help does not need

        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The fastest and the slowest sample."""
        return min(self.samples), max(self.samples)

    def saturated(self, asleep: float = 0) -> bool:
        """Whether the ranks used more than ``SATURATED`` of the cores, as far as that was recorded.

        ``asleep`` are seconds of an iteration in which they use none, and which are left out.
        """
        shares = [float(value) for name, value in self.conditions if name == CPU_SHARE]
        return any(share * self.iteration_time > SATURATED * (self.iteration_time - asleep) for share in shares)

    @property
    def shared_conditions(self) -> tuple[tuple[str, str], ...]:
        """Conditions that are the same for plans run by turns, and for their repeats."""
        return tuple(pair for pair in self.conditions if pair[0] not in OF_ONE_TURN)

    def condition(self, name: str) -> str:
        """The value of a condition. Raises DataError if it is not stated."""
        for key, value in self.conditions:
            if key == name:
                return value
        raise DataError(f"the measurement of {self.workload!r} with {self.workers} workers does not state its {name}")

    def pooled(self, other: Measurement) -> Measurement:
        """Both sets of samples as one. Raises DataError, naming the difference, for runs that are not alike."""
        for field in ("workload", "cluster", "plan", "workers", "warm_ups", "conditions", "source", "deviation"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                raise DataError(f"runs that differ in {field} cannot be pooled: {mine!r} and {theirs!r}")
        return replace(self, samples=self.samples + other.samples)


DEFAULTS = ("horovod", "ddp")
"""Names of default plans, the baselines of comparisons; the first one present is used."""
