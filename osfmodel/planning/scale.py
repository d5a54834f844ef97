"""Scale a job: the best data-parallel strategy at each number of workers, its rate, memory, utilisation and cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from osfmodel.counting.gpus import gpu_on_data_sheet
from osfmodel.engine.bands import Band
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_bytes, show_predicted_time
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import BANDLESS
from osfmodel.planning.choosing import PREFERRED, STRATEGY_PLANS, strategies_at, strategy_row
from osfmodel.planning.predictions import compare
from osfmodel.planning.results import WORTHWHILE
from osfmodel.planning.strategies import StrategyRow
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.room import shortfall
from osfmodel.solve.solution import MemoryLimit

SPARE = 0.1
"""Part of a GPU's memory that is left to its context, the communication library and fragmentation."""
SLOWEST = 1e3
"""Largest factor by which an anchor may lengthen computation."""


@dataclass(frozen=True, slots=True)
class Training:
    """The whole training: its length in samples, and the price of a GPU for an hour; None for what is not known."""

    samples: float | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("number of samples", self.samples), ("price of a GPU for an hour", self.price)):
            if value is not None and not 0 < value < 1e30:
                raise UsageError(f"the {name} is {value:g}: it must be above 0")


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """A number of workers.

    workload: as each worker computes it in a micro-batch
    rows:     the strategies that the cluster can price
    best:     the one to take; None if none fits
    samples:  of all workers in a step; None if the workload does not say its batch
    accumulated: micro-batches of a step
    training: the whole training
    """

    workers: int
    workload: Workload
    rows: tuple[StrategyRow, ...]
    best: StrategyRow | None
    samples: int | None
    accumulated: int = 1
    training: Training = Training()

    @property
    def time(self) -> float | None:
        """Seconds of a step; None if nothing fits."""
        return None if self.best is None else self.best.time

    @property
    def band(self) -> Band | None:
        """The error band of the step's time."""
        return None if self.best is None else self.best.prediction.band

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second, of all workers."""
        return None if self.time is None or self.samples is None else self.samples / self.time

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second, of all workers; None where samples have none."""
        rate, tokens = self.samples_per_s, self.workload.sample_tokens
        return None if rate is None or tokens is None else rate * tokens

    @property
    def rate_per_gpu(self) -> float | None:
        """Tokens per second of a worker, or samples, or steps if nothing else is known."""
        rate = self.tokens_per_s or self.samples_per_s or (self.time and self.workers / self.time)
        return None if rate is None else rate / self.workers

    @property
    def alone(self) -> float | None:
        """Seconds of a step with perfect scaling: computation, and the worker's part of a sharded update."""
        if self.best is None:
            return None
        rules, workload = self.best.prediction.plan.sharding, self.workload
        ranks = 1 if rules is None else rules.ranks(self.workers)
        return self.accumulated * (workload.forward_time + workload.backward_time) + workload.update_time / ranks

    @property
    def scaling_factor(self) -> float | None:
        """Time with perfect scaling over the step's time."""
        return None if self.alone is None or self.time is None else self.alone / self.time

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation; None where operations are not known."""
        ideal = self.workload.ideal_time
        return None if ideal is None or self.time is None else self.accumulated * ideal / self.time

    @property
    def hours(self) -> float | None:
        """Hours of the whole training; None where its length or the batch is not known."""
        rate, whole = self.samples_per_s, self.training.samples
        return None if rate is None or whole is None else whole / rate / 3600

    @property
    def cost_per_hour(self) -> float | None:
        """Price of all GPUs for an hour."""
        return None if self.training.price is None else self.training.price * self.workers

    @property
    def cost(self) -> float | None:
        """Cost of the whole training."""
        return None if self.hours is None or self.cost_per_hour is None else self.hours * self.cost_per_hour

    def lacking(self, limit: int) -> str:
        """The strategy that lacks least, by how much, and the remedy, in a sentence without end."""
        least = min(self.rows, key=lambda row: 0 if row.peak is None else row.peak.bytes)
        assert least.peak is not None
        return f"{least.name} {shortfall(least.peak, least.prediction.plan, limit)}"


@dataclass(frozen=True, slots=True)
class ScaleCurve:
    """The points, by number of workers.

    limit:    of each GPU's memory; None if plans are not held against any
    anchored: factor on computation with which the prediction meets the anchor; None without one
    """

    workload: Workload
    cluster: Cluster
    points: tuple[ScalePoint, ...]
    limit: MemoryLimit | None
    what_if: WhatIf = WhatIf()
    anchored: float | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())

    @property
    def turns(self) -> str:
        """The strategies by number of workers: ``ddp with 2 to 16 workers, hsdp with 32 to 64 workers``."""
        runs = groupby(self.points, lambda point: "nothing fits" if point.best is None else point.best.name)
        return ", ".join(f"{name} with {_span([point.workers for point in run])}" for name, run in runs)


def _span(counts: Sequence[int]) -> str:
    return how_many(counts[0], "worker") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} workers"


@dataclass(frozen=True, slots=True)
class Anchor:
    """One measured step: its number of workers, and seconds; or a rate in ``unit`` for which these are not known yet.

    unit: "s", "samples/s", "samples/s/gpu", "tokens/s" or "tokens/s/gpu"
    """

    workers: int
    value: float
    unit: str = "s"

    def step_time(self, samples: int | None, tokens: int | None) -> float:
        """Seconds of a step with these samples, of ``tokens`` tokens each. Raises UsageError where one is missing."""
        if self.unit == "s":
            return self.value
        amount, each = samples, self.unit.partition("/")[0]
        if amount is not None and each == "tokens":
            amount = None if tokens is None else amount * tokens
        if amount is None:
            raise UsageError(f"--anchor in {self.unit}: the workload does not say its {each}: give seconds of a step")
        return amount / (self.value * (self.workers if self.unit.endswith("/gpu") else 1))


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Options of :func:`scale`.

    plans:    named plans to choose from, one for each strategy
    limit:    of a GPU's memory; None for that of a GPU whose data sheet is known, less SPARE, else none
    what_if:  changes of the workload; those of the network are in the cluster already
    training: the whole training
    anchor:   one measured step
    """

    plans: tuple[str, ...] = STRATEGY_PLANS
    limit: MemoryLimit | None = None
    what_if: WhatIf = WhatIf()
    training: Training = Training()
    anchor: Anchor | None = None


def scale(
    workload: Workload, cluster: Cluster, counts: Sequence[int], options: ScaleOptions = ScaleOptions()
) -> ScaleCurve:
    """The best strategy that fits at each of ``counts``, which are numbers of workers.

    Counts at which the cluster has no prices are left out. Raises CostError if it has none at all, UsageError for an
    unknown plan, or an anchor that no computation meets, and DataError as ``planning.choosing.tune_any``.
    """
    wanted = options.limit or room_of(workload)
    sized = workload.state_bytes is not None or (wanted is not None and wanted.optimizer is not None)
    asked = _Asked(cluster, options, wanted if sized else None, sized)
    factor = None if options.anchor is None else asked.factor(workload, options.anchor)
    if factor is not None:
        workload = replace(workload.scaled(factor), doubt=0)
    points = list(asked.points(workload, counts))
    known = [row.prediction for point in points for row in (point.rows if point.best is None else [point.best])]
    told = (note for one in known for note in one.caveats if not note.startswith(BANDLESS))
    return ScaleCurve(
        workload,
        cluster,
        tuple(points),
        asked.limit,
        options.what_if,
        factor,
        tuple(dict.fromkeys((*asked.notes(workload, wanted), *told))),
        tuple(dict.fromkeys(warning for one in known for warning in one.warnings)),
    )


def room_of(workload: Workload) -> MemoryLimit | None:
    """The memory of the workload's GPU, less SPARE, where it is one whose data sheet is known."""
    gpu = gpu_on_data_sheet(workload.source.gpu)
    return None if gpu is None else MemoryLimit(round(gpu.memory * (1 - SPARE)))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Properties that all points share."""

    cluster: Cluster
    options: ScaleOptions
    limit: MemoryLimit | None
    sized: bool

    def points(self, workload: Workload, counts: Sequence[int]) -> Iterator[ScalePoint]:
        """The point at each count that the cluster can price. Raises CostError if there is none."""
        missing: CostError | None = None
        made = 0
        for count in counts:
            try:
                yield self.point(workload, count)
                made += 1
            except CostError as error:
                missing = missing or error
        if missing is not None and not made:
            raise missing

    def point(self, workload: Workload, workers: int) -> ScalePoint:
        """The strategies at this count, and the one to take."""
        changed = self.options.what_if.of_workload(workload, workers)
        found = strategies_at(changed, self.cluster, workers, self.options.plans)
        alike = {one.plan: one for one in reversed(found)}  # HSDP with one replica is FSDP2
        rows = tuple(
            strategy_row(one, workers, self.limit, self.sized) for one in found if alike[one.plan] is one
        )  # fmt: skip
        size = self.options.what_if.share(workers) or workload.batch_size
        samples = None if size is None else size * self.options.what_if.accumulate * workers
        single = replace(self.options.what_if, accumulate=1, batch_size=size, global_batch=None)
        each = single.of_workload(workload, workers)
        return ScalePoint(
            workers, each, rows, _taken(rows), samples, self.options.what_if.accumulate, self.options.training
        )  # fmt: skip

    def factor(self, workload: Workload, anchor: Anchor) -> float:
        """The factor on computation with which the step of the best plan takes as long as it was measured."""
        from scipy.optimize import brentq

        point = self.point(workload, anchor.workers)
        if point.best is None:
            raise UsageError(f"--anchor: nothing fits with {anchor.workers} workers, and so no step is predicted there")
        name, target = point.best.name, anchor.step_time(point.samples, workload.sample_tokens)

        def excess(factor: float) -> float:
            changed = self.options.what_if.of_workload(workload.scaled(factor), anchor.workers)
            (found,) = compare(changed, self.cluster, anchor.workers, [name]).predictions
            return found.iteration_time - target

        least, most = excess(1 / SLOWEST), excess(SLOWEST)
        if least > 0 or most < 0:
            bound = show_predicted_time(target + (least if least > 0 else most))
            what = "communication alone takes" if least > 0 else "the slowest computation that is tried takes"
            said = f"--anchor says a step of {show_predicted_time(target)} with {anchor.workers} workers"
            raise UsageError(f"{said}, and under {name} {what} {bound}: check the unit, the network, and --plan")
        return float(brentq(excess, 1 / SLOWEST, SLOWEST, rtol=1e-6))

    def notes(self, workload: Workload, wanted: MemoryLimit | None) -> Iterator[str]:
        """Remarks on memory and on what-ifs."""
        if self.limit is not None:
            yield f"plans fit if they take at most {show_bytes(self.limit.bytes)} of a GPU"
        elif wanted is not None:
            yield "memory is not compared: the profile does not say what the optimizer keeps: give --optimizer"
        else:
            yield "memory is not compared: give --memory SIZE"
        yield from self.options.what_if.caveats(workload, self.cluster)


def _taken(rows: Sequence[StrategyRow]) -> StrategyRow | None:
    """The strategy to take: the simplest that fits, unless another one is faster by more than WORTHWHILE."""
    room = [row for row in rows if row.fits is not False]
    if not room:
        return None
    order = {name: place for place, name in enumerate(PREFERRED)}
    base = min(room, key=lambda row: order.get(row.name, len(order)))
    fastest = min(room, key=lambda row: row.time)
    return fastest if fastest.time < base.time * (1 - WORTHWHILE) else base
