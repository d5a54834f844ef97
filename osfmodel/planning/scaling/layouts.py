"""The layout for N GPUs: groups inside a replica, strategy, micro-batch and checkpointing, searched best first.

Every layout waits in a queue with a bound that its step cannot beat, and the one with the least bound is looked at
next. First that is the whole model's computation, shared evenly. Then the shard of a GPU is outlined, and then counted:
its computation, the collectives of its groups and the pipeline's bubble are a higher bound, and what it holds at least
says whether it can fit at all. Then the strategies are predicted. The search ends when as many layouts as are wanted
are no slower than every bound that is left, so that none which is faster was left out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple, TypeAlias

from osfmodel.counting import in_words, load_workload
from osfmodel.counting.blocks import folded, outline
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.kernels import gpu_of
from osfmodel.counting.roofline import ADAM_STATE
from osfmodel.counting.stacks import STACKS
from osfmodel.counting.training import NOTHING, TrainingSetup, checkpointing_of
from osfmodel.counting.words import model_of, parse_words, with_parts
from osfmodel.engine.optimizers import offloaded, state_bytes
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_share, show_time
from osfmodel.entities.errors import CostError, DataError, UsageError
from osfmodel.entities.modules import SHARDED
from osfmodel.entities.workload import Workload
from osfmodel.planning.predictions import PricedSubjects
from osfmodel.planning.scaling.curve import ScaleCurve, ScalePoint, parts_of_steps
from osfmodel.planning.scaling.replicas import Divided, counted_replica, divided, foldable, outlined_replica
from osfmodel.planning.scaling.scale import ScaleOptions, ScaleTask, curve_of
from osfmodel.planning.scaling.spaces import ANY, Layout, Space, candidates, parse_space
from osfmodel.planning.scaling.strategies import room_on
from osfmodel.solve.solution import PlanRule
from osfmodel.solve.verdicts import NO, TIGHT
from osfmodel.targets.named_plans import named_plan

WANTED = 5
"""Layouts that are listed, each with other groups."""
TIE = 0.03
"""Part of a step's time by which a layout must be faster than one with fewer ways of parallelism to be taken."""
LEAST_BYTES = 8
"""Bytes of a parameter that is trained and its gradient, at least; Adam's state takes ADAM_STATE more."""


Heard: TypeAlias = Callable[[int, int], None]
"""(layouts that are done with, layouts in all)."""


class LayoutBound(NamedTuple):
    """Seconds that a step of a layout takes at least, and bytes that it lacks at least; its workload, once counted."""

    time: float
    lacking: int
    workload: Workload | None = None


class LayoutSearch:
    """The search for one number of GPUs.

    words: the workload in words, whose micro-batch and checkpointing are replaced
    hear:  is told how many layouts are done with, and how many there are
    """

    def __init__(
        self, words: str, cluster: Cluster, gpus: int, options: ScaleOptions, hear: Heard | None = None
    ) -> None:
        self.hear = hear or (lambda done, total: None)
        self.words, self.cluster, self.gpus, self.options = words, cluster, gpus, options
        self.subjects = PricedSubjects()
        self.counted = self.predicted = 0
        parsed = parse_words(words)
        self.model, self.stack, self._said = model_of(parsed), parsed.setting.stack, parsed.setting
        modules, self._more = folded(self.model, self.model.modules)
        names = tuple(name for name in self.model.blocks if name in self._more)
        self._one_of_each = replace(self.model, modules=tuple(modules), blocks=names)
        self._alone: dict[tuple[int, str], tuple[float, int]] = {}
        self._settings: dict[tuple[int, str], TrainingSetup] = {}
        self._divided: dict[Parallelism, Divided | None] = {}

    def best(self, layouts: Sequence[Layout], wanted: int = WANTED) -> list[tuple[Layout, ScalePoint]]:
        """The best layouts with different groups that fit, fastest first; without one, those that are tight.

        Where none fits at all, those that lack least.
        """
        order = count()
        queue: list[tuple[float, int, Layout, int, Workload | None]] = []
        for one in layouts:
            heapq.heappush(queue, (self._shared(one), next(order), one, 0, None))
        fitting: dict[Parallelism, tuple[Layout, ScalePoint]] = {}
        tight: dict[Parallelism, tuple[Layout, ScalePoint]] = {}
        misfits: dict[Parallelism, tuple[Layout, ScalePoint]] = {}
        large: list[tuple[int, Layout]] = []
        bounds = (self._outlined, self._bounded)
        while queue:
            self.hear(len(layouts) - len(queue), len(layouts))
            bound, _, layout, stage, workload = heapq.heappop(queue)
            if len(fitting) >= wanted and bound >= sorted(point.time for _, point in fitting.values())[wanted - 1]:
                break
            if workload is None:
                if (found := bounds[stage](layout)) is None:
                    continue
                if found.lacking > 0:
                    large.append((found.lacking, layout))
                    continue
                heapq.heappush(queue, (max(bound, found.time), next(order), layout, stage + 1, found.workload))
                continue
            before = fitting.get(layout.groups)
            below = math.inf if before is None else before[1].best.expected_time
            if len(fitting) >= wanted:
                below = min(below, sorted(point.time for _, point in fitting.values())[wanted - 1])
            if (point := self._point(layout, workload, below)) is not None:
                kept = {NO: misfits, TIGHT: tight}.get(point.fits or "", fitting)
                better = (
                    _lacks_less
                    if point.fits == NO
                    else lambda one, other: one.best.expected_time < other.best.expected_time
                )
                before = kept.get(layout.groups)
                if before is None or better(point, before[1]):
                    kept[layout.groups] = layout, point
        if fitting or tight:
            return sorted((fitting or tight).values(), key=_expected)[:wanted]
        for _, layout in sorted(large, key=lambda one: one[0])[:wanted]:
            if (point := self.price(layout)) is not None:
                misfits.setdefault(layout.groups, (layout, point))
        near = [one for one in misfits.values() if one[1].fits != NO]
        least = sorted(misfits.values(), key=lambda one: one[1].best.peak.bytes if one[1].best.peak else 0)
        return (sorted(near, key=_expected) or least)[:wanted]

    def candidates(self, space: Space, samples: int) -> list[Layout]:
        """The layouts of a space for a step of so many samples."""
        return list(candidates(space, self.cluster, self.model, self.gpus, samples, STACKS[self.stack].interleaves))

    def text(self, layout: Layout) -> str:
        """The workload in words under a layout."""
        how = "" if layout.checkpointing == NOTHING else f"ac={layout.checkpointing}"
        return with_parts(self.words, batch=f"batch{layout.batch}", ac=how)

    def _shared(self, layout: Layout) -> float:
        """The whole model's computation of a step, shared evenly between the GPUs of a replica, and the bubble."""
        return _rounds(layout) * self._outline(layout)[0] / layout.groups.gpus

    def _outline(self, layout: Layout) -> tuple[float, int]:
        """Seconds of a micro-batch of the whole model on one GPU, and bytes of its activations."""
        key, setting = (layout.batch, layout.checkpointing), self._setting(layout)
        if key not in self._alone:
            model, more = (self._one_of_each, self._more) if foldable(setting) else (self.model, {})
            self._alone[key] = outline(model, setting, more=more)
        return self._alone[key]

    def _setting(self, layout: Layout) -> TrainingSetup:
        """How a layout trains: that of the words, with its micro-batch and checkpointing."""
        key = layout.batch, layout.checkpointing
        if key not in self._settings:
            how, portion = checkpointing_of(layout.checkpointing)
            self._settings[key] = replace(self._said, batch=layout.batch, checkpointing=how, portion=portion)
        return self._settings[key]

    def _among(self, groups: Parallelism) -> Divided | None:
        """The model among the GPUs of a replica; None where it or the cluster cannot be divided like that."""
        if groups not in self._divided:
            try:
                self._divided[groups] = divided(self.model, self.cluster, groups, self.stack)
            except (UsageError, CostError):
                self._divided[groups] = None
        return self._divided[groups]

    def _outlined(self, layout: Layout) -> LayoutBound | None:
        """The bound of a layout without its layers; None where nothing can be divided like that."""
        setting, alone = self._setting(layout), layout.groups == Parallelism()
        if alone:
            seconds, active = self._outline(layout)
            trained = self.model.trained
        elif (among := self._among(layout.groups)) is not None:
            seconds, active, trained = outlined_replica(setting, among)
        else:
            return None
        limit = self.options.limit or room_on(gpu_of(setting.gpu), layout.groups)
        share = trained / layout.groups.ranks(self.gpus) if layout.groups.pipeline == 1 else 0.0
        each = LEAST_BYTES + (ADAM_STATE if limit.optimizer is None else 0)
        lacking = active + each * share - limit.bytes
        sized = self.options.sized and not setting.offload
        return LayoutBound(_rounds(layout) * seconds, round(lacking) if sized else 0)

    def _bounded(self, layout: Layout) -> LayoutBound | None:
        """The bound of a layout by its workload; None where nothing can be divided like that."""
        if (workload := self._counted(layout)) is None:
            return None
        grouped, task = self._grouped(layout, workload)
        lacking = 0 if task.limit is None else self._least(layout, grouped) - task.limit.bytes
        return LayoutBound(layout.accumulated * (grouped.forward_time + grouped.backward_time), lacking, workload)

    def _counted(self, layout: Layout) -> Workload | None:
        """The workload of a GPU; None where the model or the cluster cannot be divided like that."""
        self.counted += 1
        if layout.groups == Parallelism():
            return load_workload(self.text(layout))
        among = self._among(layout.groups)
        return None if among is None else counted_replica(self.text(layout), among)

    def _task(self, layout: Layout, workload: Workload, plans: Sequence[str]) -> ScaleTask:
        what_if = replace(self.options.what_if, accumulate=layout.accumulated, batch_size=None, global_batch=None)
        options = replace(self.options, what_if=what_if, groups=layout.groups, plans=tuple(plans))
        return ScaleTask.of(workload, self.cluster, options, self.subjects)

    def _grouped(self, layout: Layout, workload: Workload) -> tuple[Workload, ScaleTask]:
        """The workload of one micro-batch with its share of the bubble, and the task that judges it."""
        task = self._task(layout, workload, self.options.plans)
        return task.one_micro_batch(workload, self.gpus), task

    def _least(self, layout: Layout, workload: Workload, replicated: bool = False) -> int:
        """Bytes that a GPU holds at least: activations, and its share of parameters, gradients and state."""
        weights = workload.weight_bytes or workload.gradient_bytes
        optimizer = None if self.options.limit is None else self.options.limit.optimizer
        state = 0 if workload.state_bytes is None else state_bytes(workload, optimizer)
        ranks = layout.groups.ranks(self.gpus)
        whole = weights if replicated else 0
        parts = 0 if offloaded(workload) else (weights + workload.gradient_bytes + state - whole) / ranks
        active = max((layer.peak_bytes or 0 for layer in workload.layers), default=0)
        return round(workload.fullest * (whole + parts)) + active

    def price(self, layout: Layout) -> ScalePoint | None:
        """The point of a layout; None where the model or the cluster cannot be divided like that."""
        workload = self._counted(layout)
        return None if workload is None else self._point(layout, workload)

    def again(self, layout: Layout) -> tuple[Workload, ScaleTask]:
        """The workload of a GPU in a layout that was found, and the task that judges it."""
        workload = self._counted(layout)
        assert workload is not None
        return workload, self._task(layout, workload, self.options.plans)

    def _point(self, layout: Layout, workload: Workload, below: float | None = None) -> ScalePoint | None:
        """The point of a layout with the strategies that can fit; None where the cluster cannot price it.

        below: None if no strategy is below so many seconds, and else perhaps without some that are not to take
        """
        grouped, task = self._grouped(layout, workload)
        plans = list(self.options.plans)
        if task.limit is not None and self._least(layout, grouped, replicated=True) > task.limit.bytes:
            plans = [name for name in plans if _shards(name)] or plans
        self.predicted += 1
        try:
            task = self._task(layout, workload, plans)
            found = task.predictions(workload, self.gpus)
            if below is not None and min(one.iteration_time for one in found) >= below:
                return None
            return replace(task.point_of(workload, self.gpus, found, below is None), groups=layout.groups)
        except (CostError, DataError):
            return None


def _rounds(layout: Layout) -> float:
    """Micro-batches that a step takes, those for which a pipeline is idle among them."""
    return layout.accumulated + (layout.groups.pipeline - 1) / layout.groups.chunks


def _shards(name: str) -> bool:
    """Whether a named plan shards parameters."""
    rule = named_plan(name)
    return isinstance(rule, PlanRule) and rule.objective.strategy in SHARDED


def _expected(found: tuple[Layout, ScalePoint]) -> float:
    """Seconds of a step to expect, longer than predicted where memory is tight."""
    return found[1].best.expected_time


def _lacks_less(one: ScalePoint, other: ScalePoint) -> bool:
    first, second = one.best.peak, other.best.peak
    return first is not None and second is not None and first.bytes < second.bytes


def simplest(found: Sequence[tuple[Layout, ScalePoint]]) -> int:
    """The place of the layout to take: of those within TIE of the fastest the one with the fewest ways and GPUs."""
    limit = found[0][1].time * (1 + TIE)
    near = [place for place, (_, point) in enumerate(found) if point.time <= limit]
    return min(near, key=lambda place: (len(found[place][0].groups.document), found[place][0].groups.gpus, place))


def remarks_on_choice(found: Sequence[tuple[Layout, ScalePoint]], taken: int) -> list[str]:
    """A remark on the layout to take against the next best, or the fastest, and on what makes the difference."""
    if found[0][1].fits == NO:
        return [f"no layout within these limits fits on {found[0][1].workers} GPUs: --layout any tries all of them"]
    (layout, point), (other, against) = found[taken], found[0 if taken else 1]
    longer = {what: against_time - own for what, own, against_time in parts_of_steps(point, against)}
    more = against.time / point.time - 1
    what = max(longer, key=lambda name: longer[name] if more >= 0 else -longer[name])
    by = f"{show_share(abs(more))} {'more' if more >= 0 else 'less'} time than"
    why = f"{show_time(abs(longer[what]))} {'more' if longer[what] >= 0 else 'less'} {what}"
    near = " (within the tie: fewer ways of parallelism are taken)" if taken else ""
    one, two = (each.groups.words or "data parallelism alone" for each in (other, layout))
    if abs(more) < 5e-4:  # the least that show_share tells from nothing
        return [f"on {point.workers} GPUs {one} takes as long as {two}{near}"]
    return [f"on {point.workers} GPUs {one} takes {by} {two}{near}: {why}"]


def scale_layouts(
    words: str,
    cluster: Cluster,
    counts: Sequence[int],
    options: ScaleOptions = ScaleOptions(),
    limits: str = ANY,
    hear: Heard | None = None,
) -> ScaleCurve:
    """The best layout at each of ``counts``, which are numbers of GPUs, with the best few as ``combinations``.

    words:   a workload in words; its batch and checkpointing are replaced
    options: their what-ifs may state a global batch; without it each GPU has the batch of the words
    limits:  of what is tried, as :func:`parse_space` reads them
    hear:    as in LayoutSearch

    Raises UsageError for a workload that is a profile, or where no layout divides the GPUs and the batch.
    """
    if not in_words(words):
        raise UsageError(
            f"--layout: {words!r} is a profile of one GPU: give a workload in words, such as llama3-8b:h100"
        )
    space, parsed = parse_space(limits).with_checkpointing_of(words), parse_words(words)
    model = model_of(parsed)
    experts = max((module.experts for module in model.modules), default=0)
    points, listed, notes = [], [], []
    if "ep" in space.limits and space.limits["ep"].most > 1 and not experts:
        raise UsageError(f"--layout ep: {model.name} has no experts: leave it out")
    for gpus in counts:
        samples = options.what_if.global_batch or gpus * parsed.setting.batch
        search = LayoutSearch(words, cluster, gpus, options, hear)
        found = search.best(layouts := search.candidates(space, samples))
        if not found:
            chunks = "; with vpp, chunks the blocks, and stages the micro-batches" * ("vpp" in space.limits)
            raise UsageError(
                f"--layout: no layout of {gpus} GPUs for {samples} samples a step: limits and groups must divide them"
                f"{chunks}"
            )
        taken = simplest(found)
        points.append(found[taken][1])
        listed += [replace(point, taken=place == taken) for place, (_, point) in enumerate(found)]
        notes += remarks_on_choice(found, taken) if len(found) > 1 or found[0][1].fits == NO else []
        others = ", the others cannot be faster or do not fit" if search.predicted < len(layouts) else ""
        notes.append(
            f"{len(layouts):,} layouts of {gpus} GPUs for {samples:,} samples a step: {search.counted} counted, "
            f"{search.predicted} predicted{others}"
            + ("" if "batch" in space.limits else "; micro-batches are powers of two (--layout 'batch<=16' tries all)")
            + (": --global-batch asks for another" if options.what_if.global_batch is None else "")
        )
    workload, task = search.again(found[taken][0])
    curve = curve_of(task, workload, cluster, points, task.limit, notes)
    return replace(curve, combinations=tuple(listed), listed="the best layouts")
