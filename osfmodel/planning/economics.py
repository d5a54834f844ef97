"""From iteration time to hours, money and the knee."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from osfmodel.entities.errors import UsageError
from osfmodel.entities.workload import Workload


@dataclass(frozen=True, slots=True)
class Economics:
    """Training on ``samples`` samples with so many workers. ``cost`` is in the currency of the price, or None."""

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
        """``rows`` of one worker count each, with the plans called ``names`` in this order."""
        by_plan = zip(*rows, strict=True)
        return TrainingCosts(tuple(rows), {name: knee(row) for name, row in zip(names, by_plan, strict=True)})


def economics(
    workload: Workload, workers: int, iteration_time: float, samples: float, price_per_gpu_hour: float | None
) -> Economics:
    """Hours = iterations * iteration_time, with samples / (workers * batch_size) iterations (weak scaling).

    Raises UsageError where the workload does not know its batch size.
    """
    if workload.batch_size is None:
        raise UsageError(f"workload {workload.name!r} does not state its batch size: give --batch-size")
    hours = samples / (workers * workload.batch_size) * iteration_time / 3600
    gpu_hours = hours * workers
    return Economics(workers, hours, gpu_hours, None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour)


def knee(rows: Sequence[Economics]) -> int | None:
    """The worker count up to which each step pays: beyond, GPU-hours grow by a larger part than hours fall.

    For a doubling that is where it runs less than 1.5 times as fast. None where every step listed pays.
    """
    ordered = sorted(rows, key=lambda row: row.workers)
    for before, after in itertools.pairwise(ordered):
        if after.gpu_hours / before.gpu_hours - 1 > 1 - after.hours / before.hours:
            return before.workers
    return None
