"""Training hours, cost, and the knee of scaling, from iteration times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from osfmodel.entities.errors import UsageError
from osfmodel.entities.records import dataclass
from osfmodel.entities.workload import Workload


@dataclass(frozen=True, slots=True)
class Economics:
    """Training on a number of samples with ``workers`` workers; ``cost`` in the currency of the price, or None."""

    workers: int
    hours: float
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class TrainingCosts:
    """A row for every prediction of every comparison, and the knee of each plan by its name."""

    rows: tuple[tuple[Economics, ...], ...]
    knees: Mapping[str, int | None]

    @staticmethod
    def of(names: Sequence[str], rows: Sequence[tuple[Economics, ...]]) -> TrainingCosts:
        """Costs with knees; each of ``rows`` is for one worker count, with the plans ``names`` in this order."""
        by_plan = zip(*rows, strict=True)
        return TrainingCosts(tuple(rows), {name: knee(row) for name, row in zip(names, by_plan, strict=True)})


def economics(
    workload: Workload, workers: int, iteration_time: float, samples: float, price_per_gpu_hour: float | None
) -> Economics:
    """Hours = iterations * iteration_time, with samples / (workers * batch_size) iterations (weak scaling).

    Raises UsageError if the workload has no batch size.
    """
    if workload.batch_size is None:
        raise UsageError(f"workload {workload.name!r} does not state its batch size: give --batch-size")
    hours = samples / (workers * workload.batch_size) * iteration_time / 3600
    gpu_hours = hours * workers
    return Economics(workers, hours, gpu_hours, None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour)


def knee(rows: Sequence[Economics]) -> int | None:
    """The last worker count that pays: with more, GPU-hours grow by a larger part than hours fall.

    A doubling pays if it runs at least 1.5 times as fast. None if every count listed pays.
    """
    ordered = sorted(rows, key=lambda row: row.workers)
    for before, after in itertools.pairwise(ordered):
        if after.gpu_hours / before.gpu_hours - 1 > 1 - after.hours / before.hours:
            return before.workers
    return None
