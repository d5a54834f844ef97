"""What is found out about a traced job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from osfmodel.diagnosis.bucket_rows import BucketRow
from osfmodel.diagnosis.parts import Parts

COMPUTE = "compute"
"""What limits a job that no cause does: its computation, which is what is left without any of them."""
COMPUTE_MEANING = "what is left: the device computes or copies"
"""Of COMPUTE in half a line, as a cause has its own."""


@dataclass(frozen=True, slots=True)
class Gains:
    """Of one step: by cause, the seconds that it costs; ``replayed``: seconds of the replay with all of them in it."""

    replayed: float
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something to change, and what would come of it.

    step_time:  seconds of a step then; None where it cannot be priced
    throughput: samples per second then, as a multiple of now; None likewise
    by:         what it is computed from: ``model``, or ``replay`` of the trace
    note:       what the figure leaves out, and that it is extrapolated; where there is none, why it cannot be priced
    """

    name: str
    what: str
    step_time: float | None
    throughput: float | None
    by: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class StepParts:
    """A step: its number, its seconds and where they went, the mean over the ranks; and what each cause cost."""

    number: int
    time: float
    parts: Parts
    gains: Gains = field(repr=False)


@dataclass(frozen=True, slots=True)
class RankParts:
    """A rank: its parts and its own work in a usual step, and in how many of all steps that was the most.

    ``work`` is seconds of the step without those in which it waited for collectives or its data loader.
    """

    rank: int
    parts: Parts
    work: float
    slowest: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the steps of a job took as long as they did. Times in seconds.

    cluster:   the name of the one that the trace was compared with
    step_time: a usual step: the mean over the ranks and over the middle third of the steps by duration, the median of
               three
    parts:     where it went; they add up to it
    gains:     by cause, what it costs of a usual step; :data:`osfmodel.diagnosis.causes.CAUSES` says what holds without
               it
    replayed:  the usual step as the replay has it, to which the gains and what is left add up; what it differs by from
               ``step_time`` is their error
    cause:     the one that costs most; COMPUTE where none costs 5 % of the step
    straggler: the rank that is most often the slowest, where a cause of one rank costs 5 %; None else, or with one rank
    network:   the costliest cause among those of communication, where it costs 5 %; None else
    verdict:   a sentence on ``cause``, and one on the straggler or the network, if that is the other
    sender:    the rank whose messages ``buckets`` are: the median by its own work
    remarks:   what the trace does not tell, one sentence each
    remedies:  what would help, the most first
    """

    name: str
    workers: int
    cluster: str | None
    ranks: tuple[RankParts, ...]
    steps: tuple[StepParts, ...] = field(repr=False)
    step_time: float
    parts: Parts
    gains: Mapping[str, float]
    replayed: float
    cause: str
    straggler: int | None
    network: str | None
    verdict: str
    buckets: tuple[BucketRow, ...] = field(repr=False)
    sender: int = 0
    remarks: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def left(self) -> float:
        """Seconds that no cause costs: the device computes or copies."""
        return max(0.0, self.replayed - sum(self.gains.values()))

    def part(self, cause: str) -> float:
        """What a cause costs as a part of the step."""
        return self.gains[cause] / self.step_time if self.step_time else 0.0
