"""A scaling curve: the strategies at each number of workers, and the rates, memory and cost of the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from osfmodel.counting.groups import Parallelism
from osfmodel.engine.bands import Band, counted_band
from osfmodel.engine.optimizers import shard_update_time
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import VIEWED, brief, how_many, show_predicted_time, show_share
from osfmodel.entities.errors import UsageError
from osfmodel.entities.modules import SHARDED
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import WORTHWHILE
from osfmodel.planning.scaling.anchors import Taught
from osfmodel.planning.scaling.strategies import StrategyRow, reserved_near, span_of
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import NO, RETRY_SLOWDOWN, TIGHT, YES, need


@dataclass(frozen=True, slots=True)
class TrainingLength:
    """The whole training: its length in samples, and the price of a GPU for an hour; None for what is not known."""

    samples: float | None = None
    price: float | None = None
    __repr__ = brief

    def __post_init__(self) -> None:
        for name, value in (("number of samples", self.samples), ("price of a GPU for an hour", self.price)):
            if value is not None and not 0 < value < 1e30:
                raise UsageError(f"the {name} is {value:g}: it must be above 0")


@dataclass(frozen=True)
class ScalePoint:
    """A number of GPUs, ``workers``.

    workload: as each GPU computes it in a micro-batch
    rows:     the strategies that the cluster can price
    best:     the one to take; if none fits, the one that lacks least
    samples:  of all GPUs in a step; None if the workload does not say its batch
    ranks:    GPUs that reduce each gradient together
    accumulated: micro-batches of a step
    training: the whole training
    inside:   whether all are on one node
    groups:   parallelism inside a replica
    taken:    whether it is the one to take at this number of GPUs, in ``combinations`` only
    taught:   the error band with what several anchors showed
    """

    workers: int
    workload: Workload
    rows: tuple[StrategyRow, ...]
    best: StrategyRow
    samples: int | None
    ranks: int
    accumulated: int = 1
    training: TrainingLength = TrainingLength()
    inside: bool = False
    groups: Parallelism = Parallelism()
    taken: bool = False
    taught: Band | None = None

    def __repr__(self) -> str:
        step = f"{self.best.name}, {show_predicted_time(self.best.time)}{', does not fit' * (self.fits == NO)}"
        return brief(self, f"{how_many(self.workers, 'GPU')}: {step}")

    @property
    def fits(self) -> str | None:
        """YES, TIGHT or NO, whether a GPU has room for the strategy; None without a limit."""
        return self.best.fits

    @property
    def time(self) -> float:
        """Seconds of a step."""
        return self.best.time

    @property
    def reserved(self) -> int | None:
        """Bytes that PyTorch's allocator takes, simulated near the limit of memory."""
        return reserved_near(self.best, self.ranks)

    @cached_property
    def band(self) -> Band | None:
        """The error band of the step's time; of a counted workload, and so of all replicas, on one GPU too.

        That of one with an anchor is among nodes that of profiled ones, whose computation is known.
        """
        if self.taught is not None:
            return self.taught
        found, bound = self.best.prediction, self.best.prediction.bound.question
        replicas = self.ranks < self.workers
        if self.workload.fixed_share is None or not (replicas or self.inside or self.workers == 1):
            return found.band
        return counted_band(bound.workload, found.plan, found.timeline, bound.pricing, replicas and not self.inside)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second, of all workers."""
        return None if self.samples is None else self.samples / self.time

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second, of all workers; None where samples have none."""
        rate, tokens = self.samples_per_s, self.workload.sample_tokens
        return None if rate is None or tokens is None else rate * tokens

    @property
    def rate_per_gpu(self) -> float:
        """Tokens per second of a worker, or samples, or steps if nothing else is known."""
        rate = self.tokens_per_s or self.samples_per_s or self.workers / self.time
        return rate / self.workers

    @property
    def alone(self) -> float:
        """Seconds of a step with perfect scaling: computation, and the worker's part of a sharded update."""
        rules, workload = self.best.prediction.plan.sharding, self.workload
        computed = self.accumulated * (workload.forward_time + workload.backward_time)
        if rules is None:
            return computed + workload.update_time
        fetched = self.best.prediction.plan.strategy in SHARDED
        return computed + shard_update_time(workload, rules.ranks(self.ranks), 1, True, fetched)

    def host_bytes(self, groups: Parallelism) -> int:
        """Bytes of its host's memory that a GPU takes; a pipeline's first stage has several micro-batches there."""
        offload, rules = self.workload.offload, self.best.prediction.plan.sharding
        if offload is None:
            return 0
        shards = 1 if rules is None else rules.ranks(self.ranks)
        return -(-offload.state_bytes // shards) + min(groups.pipeline, self.accumulated) * offload.activation_bytes

    @property
    def scaling_factor(self) -> float:
        """Time with perfect scaling over the step's time."""
        return self.alone / self.time

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation; None where operations are not known."""
        ideal = self.workload.ideal_time
        return None if ideal is None else self.accumulated * ideal / self.time

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
        """The need of the best strategy, in a sentence without full stop; ``rescues`` has the remedies."""
        assert self.best.peak is not None
        return f"{self.best.name} {need(self.best.peak, limit, self.reserved)}"


@dataclass(frozen=True, slots=True)
class Rescue:
    """A change with which a step fits.

    workers: GPUs of the point that it is for
    said:    the change, in words
    point:   with the change
    lost:    part of each GPU's rate that it costs; below 0 where it is faster
    command: that predicts it
    """

    workers: int
    said: str
    point: ScalePoint
    lost: float
    command: str = ""

    @property
    def words(self) -> str:
        """The change and what it costs."""
        cost = f"{show_share(self.lost)} less" if self.lost >= 0 else f"{show_share(-self.lost)} more"
        return f"{self.said}: {cost} of each GPU's rate"


@dataclass(frozen=True, slots=True)
class ScaleCurve:
    """The points, by number of GPUs.

    workload: with the times of computation that an anchor makes of it
    limit:    of each GPU's memory; None if plans are not held against any
    anchored: factor on computation with which the prediction meets the anchor; None without one
    learned:  what several anchors taught; the cluster is the one that they taught
    groups:   of a replica of several GPUs
    combinations: of the values of options, by number of GPUs; ``points`` are of the best at the largest number
    listed:   what the combinations are
    """

    workload: Workload
    cluster: Cluster
    points: tuple[ScalePoint, ...]
    limit: MemoryLimit | None
    what_if: WhatIf = WhatIf()
    anchored: float | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    groups: Parallelism = Parallelism()
    combinations: tuple[ScalePoint, ...] = ()
    listed: str = "all combinations"
    learned: Taught | None = None
    to_dict, to_records, to_frame, _repr_html_ = VIEWED

    def __repr__(self) -> str:
        changed = f" with {self.changes}" if self.changes else ""
        return brief(self, f"{self.workload.name} on {self.cluster.name}{changed}: {self.turns}")

    @property
    def changes(self) -> str:
        """The groups of a replica and the what-ifs, in words; "" for none."""
        if self.varied:
            return replace(self.what_if, batch_size=None, accumulate=1).words
        return ", ".join(filter(None, (self.groups.words, self.what_if.words)))

    @property
    def varied(self) -> bool:
        """Whether each number of GPUs has a combination of options of its own."""
        return bool(self.combinations) and len(self.points) > 1

    @property
    def turns(self) -> str:
        """The strategies by number of GPUs: ``Take ddp on 2 to 16 GPUs, hsdp on 32 to 64 GPUs.``"""
        runs = groupby(self.points, lambda point: "" if point.fits == NO else point.best.name)
        spans = [(name, span_of([point.workers for point in run], "GPU")) for name, run in runs]
        taken = ", ".join(f"{name} on {span}" for name, span in spans if name)
        none = ", ".join(span for name, span in spans if not name)
        tight = [point for point in self.points if point.fits == TIGHT]
        said = [f"Nothing fits on {none}." if none else "", f"Take {taken}." if taken else ""]
        if tight:
            each = (f"{how_many(point.workers, 'GPU')} ({show_share(point.best.chance or 0.0)})" for point in tight)
            said.append(f"Memory is tight on {', '.join(each)}: in brackets is the chance that it fits.")
            slower = f"nine runs of nanotron so near the limit took {RETRY_SLOWDOWN:g} times as long as predicted"
            said.append(f"A step may then take longer than shown: {slower}.")
        return " ".join(filter(None, (*said, self.slower_with_more)))

    @property
    def slower_with_more(self) -> str:
        """A sentence where the largest number of GPUs does less in all than a smaller one, by more than runs differ."""
        fitting = [point for point in self.points if point.fits != NO]
        best = max(fitting, key=lambda point: point.rate_per_gpu * point.workers, default=None)
        if best is None:
            return ""
        last = fitting[-1]
        part = last.rate_per_gpu * last.workers / (best.rate_per_gpu * best.workers)
        if part > 1 - WORTHWHILE:
            return ""
        less = f"{last.workers} do {show_share(part)} of what {how_many(best.workers, 'GPU')} do in the same time"
        return f"More GPUs are predicted to be slower: {less}."


def combined(curves: Sequence[ScaleCurve], listed: bool) -> ScaleCurve:
    """The curve with the highest rate at the largest number of GPUs, with the combinations of all curves.

    listed: whether each strategy is a combination, or only the one to take
    """
    each = (replace(point, groups=curve.groups) for curve in curves for point in curve.points)
    points = sorted(each, key=lambda point: point.workers)
    best = {count: max(own, key=_preferred) for count, own in groupby(points, lambda point: point.workers)}
    found = (
        replace(point, best=row, taken=row is point.best and point is best[point.workers] and _rate(point) > 0)
        for point in points
        for row in (point.rows if listed else [point.best])
    )
    last = max(curves, key=lambda curve: (curve.points[-1].workers, _preferred(curve.points[-1])))
    warnings = dict.fromkeys(warning for curve in curves for warning in curve.warnings)
    return replace(last, combinations=tuple(found), warnings=tuple(warnings))


def _rate(point: ScalePoint) -> float:
    """The rate of each GPU to expect; 0 if nothing fits."""
    return 0.0 if point.fits == NO else point.rate_per_gpu * point.time / point.best.expected_time


def _preferred(point: ScalePoint) -> tuple[bool, float]:
    """The turn of a point: those that surely fit first, then the fastest."""
    return point.fits in (None, YES), _rate(point)


@dataclass(frozen=True, slots=True)
class Anchor:
    """One measured step: its number of workers, and seconds; or a rate in ``unit`` for which these are not known yet.

    unit: "s", "samples/s", "samples/s/gpu", "tokens/s" or "tokens/s/gpu"
    accumulate, batch_size: of the measured step, if not those that are asked about
    """

    workers: int
    value: float
    unit: str = "s"
    accumulate: int | None = None
    batch_size: int | None = None
    __repr__ = brief

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


def parts_of_steps(*points: ScalePoint) -> Iterator[tuple[str, float, float]]:
    """The parts of two points' steps: what it is, seconds of the first, seconds of the second."""
    named: list[dict[str, float]] = []
    for point in points:
        each = point.workload.forward_time + point.workload.backward_time
        whole, idle = point.accumulated * each, (point.groups.pipeline - 1) / point.groups.chunks * each
        rest = point.time - whole - idle
        named.append({
            "of computation and of collectives inside replicas": whole,
            "of a pipeline's bubble": idle,
            "of updates, and of collectives between replicas that nothing hides": rest,
        })  # fmt: skip
    yield from ((what, *(each[what] for each in named)) for what in named[0])  # type: ignore[misc]
