"""Scale a job: the best data-parallel strategy at each number of workers, its rate, memory, utilisation and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from osfmodel.cost import network_rates
from osfmodel.cost.clusters import strided
from osfmodel.counting import in_words
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.words import model_of, parse_words
from osfmodel.engine.bands import COUNTED, REPLICAS
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import brief, how_many, show_bytes
from osfmodel.entities.errors import CostError
from osfmodel.entities.modules import SHARDED
from osfmodel.entities.sharding import placed
from osfmodel.entities.workload import Workload
from osfmodel.planning.cautions import APART, BANDLESS, NETWORK, WIDE, apart
from osfmodel.planning.predictions import Given, PricedSubjects
from osfmodel.planning.results import WORTHWHILE, Prediction
from osfmodel.planning.scaling.anchoring import banded, factor_of, far, learn, measured
from osfmodel.planning.scaling.curve import Anchor, ScaleCurve, ScalePoint, TrainingLength
from osfmodel.planning.scaling.replicas import (
    assumptions,
    in_groups,
    in_micro_batches,
    of_each_gpu,
    stack_of,
)
from osfmodel.planning.scaling.stack_plans import as_run
from osfmodel.planning.scaling.strategies import StrategyRow, possible, room_of
from osfmodel.planning.tuning.choosing import STRATEGY_PLANS, strategies_at, strategy_row
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import YES
from osfmodel.targets.megatron import refusal

FITTING = (
    "memory is what a step holds; PyTorch reserves more, and that must fit in {} of a GPU. By the errors of published "
    "peaks, yes means a chance of 95 % or more, tight 5 to 95 %"
)
FITS = "memory is what a step holds; what PyTorch reserves fits in {} of a GPU, with a chance of 95 % or more"
ON_HOST = (
    "{words}: {each} of host memory for each GPU, {node} for {gpus} of a node; rates of hosts are data sheets', that "
    "of the CPU's update assumed: no published run is behind these times"
)
PLACED = (
    "FSDP2 with {ranks} ranks for {experts} experts: split along dimension 1, as torchtitan does; give fully_shard "
    "shard_placement_fn=lambda parameter: Shard(1) for experts, or use --ep"
)


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Options of :func:`scale`.

    plans:    named plans to choose from, one for each strategy
    limit:    of a GPU's memory; None for what a known GPU leaves a process (``room_of``), else none
    what_if:  changes of the workload; those of the network are in the cluster already
    training: the whole training
    anchor:   one measured step, or several
    groups:   of a replica, of whose GPUs the workload is one (``planning.scaling.replicas.replica_workload``)
    sized:    whether memory is computed; without it all strategies count as fitting
    """

    plans: tuple[str, ...] = tuple(STRATEGY_PLANS)
    limit: MemoryLimit | None = None
    what_if: WhatIf = WhatIf()
    training: TrainingLength = TrainingLength()
    anchor: Anchor | tuple[Anchor, ...] | None = None
    groups: Parallelism = Parallelism()
    sized: bool = True
    __repr__ = brief

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """The measured steps."""
        return (self.anchor,) if isinstance(self.anchor, Anchor) else self.anchor or ()


def scale(
    workload: Workload, cluster: Cluster, counts: Sequence[int], options: ScaleOptions = ScaleOptions()
) -> ScaleCurve:
    """The best strategy that fits at each of ``counts``, which are numbers of GPUs.

    Counts at which the cluster has no prices are left out. Raises CostError if it has none at all, UsageError for an
    unknown plan, GPUs that are not whole replicas, or an anchor that no computation meets, and DataError as
    ``planning.tuning.choosing.tune_any``.
    """
    asked, wanted = ScaleTask.of(workload, cluster, options), options.limit or room_of(workload, options.groups)
    learned, before, near = None, workload, None
    factor = factor_of(asked, workload, options.anchors[0]) if len(options.anchors) == 1 else None
    stated, taught = cluster, asked
    if options.anchors and factor is None:
        learned = learn([measured(asked, workload, one)[0] for one in options.anchors])
        taught, cluster = replace(asked, cluster=learned.cluster(asked.cluster)), learned.cluster(cluster)
        factor = learned.compute(asked.inside(counts[-1]))
        near = replace(workload.scaled(learned.compute(True)), doubt=0)
    if factor is not None:
        workload = replace(workload.scaled(factor), doubt=0)
    points = list(taught.points(workload, counts, near))
    if learned is not None:
        points = [banded(asked, learned, before, point) for point in points]
    found = curve_of(asked, workload, stated, points, wanted)
    contradicting = () if learned is None else learned.contradictions
    warnings = tuple(dict.fromkeys((*far(factor), *contradicting, *found.warnings)))
    return replace(found, cluster=cluster, anchored=factor, learned=learned, warnings=warnings)


def curve_of(
    asked: ScaleTask,
    workload: Workload,
    cluster: Cluster,
    points: Sequence[ScalePoint],
    wanted: MemoryLimit | None,
    told: Iterable[str] = (),
) -> ScaleCurve:
    """The curve of points that were made, with what is to know about the last; ``told`` are its first notes.

    wanted: the limit of memory, even if the workload does not say enough to hold anything against it
    """
    notes = (*told, *asked.notes(workload, wanted, points), *_placed(points), *_told(points, cluster))
    warnings = dict.fromkeys(warning for point in points for warning in point.best.prediction.warnings)
    options = asked.options
    return ScaleCurve(
        workload, cluster, tuple(points), asked.limit, options.what_if, None, tuple(dict.fromkeys(notes)),
        tuple(warnings), options.groups,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScaleTask:
    """Properties of all points of a curve.

    sized: whether memory is computed, and held against ``limit``
    stack: of a workload in words; "" for others
    """

    cluster: Cluster
    options: ScaleOptions
    limit: MemoryLimit | None
    sized: bool
    subjects: PricedSubjects
    stack: str = ""

    @classmethod
    def of(
        cls, workload: Workload, cluster: Cluster, options: ScaleOptions, subjects: PricedSubjects | None = None
    ) -> ScaleTask:
        """The task of a workload; without a limit of memory in ``options``, with that of its GPU."""
        wanted = options.limit or room_of(workload, options.groups)
        known = workload.state_bytes is not None or (wanted is not None and wanted.optimizer is not None)
        sized = options.sized and known
        return cls(
            strided(cluster, options.groups.tensor),
            options,
            wanted if sized else None,
            sized,
            subjects or PricedSubjects(),
            parse_words(workload.name).setting.stack if in_words(workload.name) else "",
        )

    def inside(self, workers: int) -> bool:
        """Whether so many GPUs are on one node."""
        return workers // self.options.groups.tensor <= self.cluster.gpus_per_node

    def ranks(self, workers: int) -> int:
        """GPUs that reduce each gradient together."""
        return self.options.groups.ranks(workers)

    def given(self, name: str) -> Given:
        """The plan called so, as the groups run it."""
        return as_run(name, self.options.groups, self.stack)

    def measuring(self, anchor: Anchor) -> ScaleTask:
        """The task with the anchor's batch."""
        own = self.options.what_if
        accumulate, batch = anchor.accumulate or own.accumulate, anchor.batch_size or own.batch_size
        what_if = replace(own, accumulate=accumulate, batch_size=batch)
        return replace(self, options=replace(self.options, what_if=what_if))

    def points(self, workload: Workload, counts: Sequence[int], near: Workload | None = None) -> Iterator[ScalePoint]:
        """The point at each count that the cluster can price. Raises CostError if there is none.

        near: the workload on one node, if it is another
        """
        missing: CostError | None = None
        made = 0
        for count in counts:
            try:
                yield self.point(near if near is not None and self.inside(count) else workload, count)
                made += 1
            except CostError as error:
                missing = missing or error
        if missing is not None and not made:
            raise missing

    def predictions(self, workload: Workload, workers: int) -> list[Prediction]:
        """Predictions of the strategies at this count that differ. Raises CostError as ``strategies_at``."""
        groups = self.options.groups
        replicas = groups.replicas(workers)
        what_if = in_micro_batches(self.options.what_if, workload, replicas)
        changed = what_if.of_workload(self.one_micro_batch(workload, workers), replicas)
        subject = self.subjects.of(changed, self.cluster, groups.ranks(workers))
        found = strategies_at(subject, [self.given(name) for name in self.options.plans])
        alike = {one.plan: one for one in reversed(found)}  # HSDP with one replica is FSDP2
        return [one for one in found if alike[one.plan] is one]

    def point(self, workload: Workload, workers: int) -> ScalePoint:
        """The strategies at this count, and the one to take."""
        return self.point_of(workload, workers, self.predictions(workload, workers))

    def point_of(self, workload: Workload, workers: int, found: list[Prediction], every: bool = True) -> ScalePoint:
        """The point of these predictions; without ``every`` perhaps not of all that are not to take."""
        groups = self.options.groups
        replicas, ranks = groups.replicas(workers), groups.ranks(workers)
        what_if = in_micro_batches(self.options.what_if, workload, replicas)
        size = what_if.share(replicas) or workload.batch_size
        rows = tuple(self._rows(found, ranks) if every else self._fast_rows(found, ranks))
        samples = None if size is None else size * what_if.accumulate * replicas
        each = replace(what_if, accumulate=1, batch_size=size, global_batch=None).of_workload(workload, replicas)
        taken = _taken(rows)
        inside = self.inside(workers)
        return ScalePoint(workers, each, rows, taken, samples, ranks, what_if.accumulate, self.options.training, inside)

    def _rows(self, found: Iterable[Prediction], ranks: int) -> list[StrategyRow]:
        """Predictions with their memory, held against the limit."""
        return [strategy_row(one, ranks, self.limit, self.sized, self.options.groups) for one in found]

    def _fast_rows(self, found: Iterable[Prediction], ranks: int) -> list[StrategyRow]:
        """Rows by which ``_taken`` decides: memory of strategies that are slower than one that fits is left out.

        But for the simplest, which is there to be beaten.
        """
        rows: list[StrategyRow] = []
        slower: list[Prediction] = []
        most = math.inf
        for one in sorted(found, key=lambda one: one.iteration_time):
            if one.iteration_time > most:
                slower.append(one)
                continue
            rows += self._rows([one], ranks)
            if rows[-1].fits in (None, YES):
                most = min(most, rows[-1].expected_time / (1 - WORTHWHILE))
        for one in sorted(slower, key=_turn):
            if _turn(one) > min(map(_turn, possible(rows))):
                break
            rows += self._rows([one], ranks)
        return rows

    def one_micro_batch(self, workload: Workload, workers: int) -> Workload:
        """The workload of each GPU in a micro-batch of the batch that it was counted for, with the bubble's share."""
        groups = self.options.groups
        replicas = groups.replicas(workers)
        what_if = in_micro_batches(self.options.what_if, workload, replicas)
        return in_groups(workload, groups, what_if.accumulate, workers, what_if.share(replicas), self.inside(workers))

    def changed(self, workload: Workload, workers: int) -> Workload:
        """The workload of each GPU, with all micro-batches, where there are ``workers`` of them."""
        return of_each_gpu(workload, self.options.groups, self.options.what_if, workers, self.inside(workers))

    @staticmethod
    def active(workload: Workload, count: int) -> str:
        """Words on those of ``count`` parameters that a token passes, for a model with experts; "" for others."""
        active = model_of(parse_words(workload.name)).active if in_words(workload.name) else count
        return f" ({active / 1e9:.3g} active)" if active < count else ""

    def _interleaved(self, workload: Workload, last: ScalePoint) -> Iterator[str]:
        """A caution on chunks of stages that are priced, and that Megatron does not run."""
        groups, blocks = self.options.groups, len(model_of(parse_words(workload.name)).blocks)
        if said := refusal(blocks, groups.pipeline, groups.chunks, last.accumulated):
            yield f"careful: --pp {groups.pipeline} --vpp {groups.chunks} is priced, but {said}"

    def notes(self, workload: Workload, wanted: MemoryLimit | None, points: Sequence[ScalePoint]) -> Iterator[str]:
        """Remarks on what was counted, on memory and on what-ifs; numbers are those of the last point."""
        last = points[-1]
        if workload.fixed_share is not None and workload.batch_size is not None:
            tokens = "" if workload.sample_tokens is None else f" of {workload.sample_tokens:,} tokens"
            count = sum(layer.elements for layer in workload.layers if layer.gradient_bytes)
            each = " on a GPU" if self.options.groups != Parallelism() else self.active(workload, count)
            samples = how_many(last.workload.batch_size or 1, "sample")
            train = " that train" if workload.fixed_bytes else ""
            number = f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
            said = f"counted: {number} parameters{train}{each}, a micro-batch of {samples}{tokens}"
            step = (last.samples or 0) * (workload.sample_tokens or 0)
            said += f", {last.accumulated} of them a step" if "global_batch" in self.options.what_if.document else ""
            said += f", a step of {step:,} tokens on {how_many(last.workers, 'GPU')}" if step else ""
            yield said + (stack_of(workload) if in_words(workload.name) else "")
        if self.limit is not None:
            sure = all(point.fits == YES for point in points)
            yield (FITS if sure else FITTING).format(show_bytes(self.limit.bytes))
        elif wanted is not None:
            yield "memory is not compared: the profile does not say what the optimizer keeps: give --optimizer adamw"
        else:
            yield "memory is not compared: give --memory SIZE"
        if self.options.groups != Parallelism():
            yield assumptions(self.options.groups, parse_words(workload.name).setting)
            if self.options.groups.chunks > 1:
                yield from self._interleaved(workload, last)
            if self.options.groups.tensor > 1:
                yield from (APART.format(**words) for words in apart(self.cluster))
        if workload.offload is not None:
            held = last.host_bytes(self.options.groups)
            node = min(last.workers, self.cluster.gpus_per_node)
            yield ON_HOST.format(
                words=workload.offload.words,
                each=show_bytes(held),
                gpus=how_many(node, "GPU"),
                node=show_bytes(node * held),
            )
        yield from self.options.what_if.caveats(workload, self.cluster)


def _told(points: Sequence[ScalePoint], cluster: Cluster) -> Iterator[str]:
    """The notes of predictions, without those on bands that counted times replace, and with the user's own network."""
    for point in points:
        counted = point.band is not None and point.band.kind in (COUNTED, REPLICAS)
        anchored = point.taught is not None or (counted and not point.workload.doubt)
        for one in point.best.prediction.caveats:
            if one.startswith(NETWORK):
                yield f"{NETWORK} {network_rates(cluster)}"
            elif not (anchored and one.startswith(WIDE)) and not (point.band and one.startswith(BANDLESS)):
                yield one


def _placed(points: Sequence[ScalePoint]) -> Iterator[str]:
    """A remark on experts that are split along dimension 1 at the largest number of workers."""
    last = points[-1]
    if any(row.prediction.plan.strategy in SHARDED for row in last.rows):
        for layer in last.workload.layers:
            if placed(layer, last.ranks):
                yield PLACED.format(experts=layer.shape[0], ranks=last.ranks)
                return


def _turn(one: StrategyRow | Prediction) -> int:
    """The place of a strategy among those that are known, the simplest first."""
    return STRATEGY_PLANS.get(one.name, len(STRATEGY_PLANS))


def _taken(rows: Sequence[StrategyRow]) -> StrategyRow:
    """The strategy to take: the simplest that fits, unless another one is faster by more than WORTHWHILE.

    Those that fit surely go before those that may. Where none fits, the one that lacks least.
    """
    room = possible(rows)
    if not room:
        return min(rows, key=lambda row: 0 if row.peak is None else row.peak.bytes)
    base = min(room, key=_turn)
    fastest = min(room, key=lambda row: row.expected_time)
    return fastest if fastest.expected_time < base.expected_time * (1 - WORTHWHILE) else base
