"""The content of a file as ``osf compare`` sees it: things with times, and the parts that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from osfmodel.diagnosis.comparing.statistics import StepSeries
from osfmodel.entities.checks import require_count, require_name, require_time
from osfmodel.entities.display import brief, how_many, show_time
from osfmodel.entities.errors import DataError
from osfmodel.entities.lookup import require
from osfmodel.entities.modules import module_of
from osfmodel.entities.workload import Workload

STEPS, EXACT, PAIRS, PRICES = "steps", "exact", "pairs", "prices"
"""Ways to compare times: repeated steps with noise; predictions without any; measured times by size; prices by size."""
BY_SIZE = (PAIRS, PRICES)
COMPARABLE: Mapping[str, str] = {
    "trace": "profiler traces of a job",
    "runs": "measured runs",
    "times": "step times",
    "prediction": "predictions",
    "cluster": "prices of collectives",
    "workload": "the computation of a workload",
}
"""Kinds of content that can be compared, each only with its own, and what they hold."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A thing with a time: the step of a job under a plan, a predicted step, a collective over a range of sizes.

    name:  tells it from others of the same file, and is the same in another file
    runs:  its times, by run; of BY_SIZE those of a single run, one for each of ``sizes``
    how:   STEPS, EXACT, PAIRS or PRICES
    parts: seconds of the parts that a usual step is made of, by cause; empty if not known
    sizes: bytes of the collectives of BY_SIZE
    """

    name: str
    runs: tuple[StepSeries, ...]
    how: str = STEPS
    parts: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require_name(self.name, "the name of what is compared")
        if not self.runs:
            raise DataError(f"{self.name}: has no times")
        if self.how in BY_SIZE and len(self.sizes) != len(self.runs[0].times):
            raise DataError(f"{self.name}: needs a time for each of its {how_many(len(self.sizes), 'size')}")

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {how_many(len(self.runs), 'run')}, {show_time(self.runs[0].median)}")


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """Collectives of one kind in one process group, those of a step or of one size.

    kind:      ``all_reduce``, ``broadcast`` ...; all-gathers of sharded parameters with their pass
    group:     the process group, as the trace names it; "" if it does not
    workers:   ranks of the group; 0 if unknown
    count:     collectives in a step, the mean over its usual steps
    bytes:     input of each rank, of all of them; None if the trace does not say. Of a cluster the size as ``cost_of``
               has it: of an all-gather that of its result
    time:      seconds that they took, in the mean over the ranks; waits for other ranks left out where they are known
    bandwidth: bus bandwidth in bytes/s, as nccl-tests defines it; None if bytes or workers are not known
    """

    kind: str
    group: str
    workers: int
    count: float
    bytes: float | None
    time: float
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        require_name(self.kind, "the kind of a collective")
        require_count(self.workers, "workers of a process group")
        require_time(self.time, f"the time of {self.kind}")

    def __repr__(self) -> str:
        return brief(self, f"{self.count:g} {self.kind}, {show_time(self.time)}")


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of a file, as far as it can be compared.

    name:        of the file
    kind:        a key of COMPARABLE
    subjects:    things with times; at least one
    collectives: of a trace those of a usual step, of a cluster those of each size
    modules:     seconds of computation of a step, by module; empty if the file does not tell
    facts:       conditions, such as the number of workers: differences are listed
    """

    name: str
    kind: str
    subjects: tuple[Timed, ...]
    collectives: tuple[CollectiveUse, ...] = ()
    modules: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.subjects:
            raise DataError(f"{self.name}: holds no times to compare")
        require(self.kind, COMPARABLE, "kind of content")
        names = [one.name for one in self.subjects]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{self.name}: holds {name} twice: give a file for each")

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.kind} of {', '.join(one.name for one in self.subjects)}")


def modules_of(workload: Workload) -> dict[str, float]:
    """Seconds of forward and backward of each module of a workload, in forward order; {} if it has one row for all."""
    seconds: dict[str, float] = {}
    for layer in workload.layers:
        module = module_of(layer.name)
        seconds[module] = seconds.get(module, 0.0) + layer.forward_time + layer.backward_time
    return seconds if len(workload.layers) > 1 else {}
