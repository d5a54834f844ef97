"""The closed form: collectives in order on one channel, and a barrier before the next forward.

With ready times r_k (of the last gradient in bucket k) and message sizes s_k, in the order of the plan,

    start_k = max(end_{k-1}, r_k),   end_k = start_k + T(s_k),   t_iter = max(t_f + t_b, end_K) + t_u

MG-WFBP (TPDS'21), Eq. 6-8, with buckets instead of layers. Only +, max and the cost itself touch a time, and
clocks start at the integer 0, so rational input gives rational output.

Effects (``entities.effects``) change when a gradient is ready and what a message costs, not the recursion: hooks and
copies lengthen the computation before it, stragglers stretch it, and while a collective runs the compute stream goes
at 1 / (1 + slowdown) of its speed. :class:`Engine` is the row type of ENGINES.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost
from osfmodel.entities.effects import NO_EFFECTS, Effects
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.timeline import LateSpans, Span, Timeline
from osfmodel.entities.workload import Workload


def predict_timeline(
    workload: Workload, plan: Plan, cost: Cost, effects: Effects = NO_EFFECTS, workers: int = 1
) -> Timeline:
    """One iteration of ``workload`` under ``plan`` with collectives priced by ``cost``.

    ``workers`` matters to stragglers alone: the cost is that of their number already. Raises PlanError where the plan
    does not belong to the workload, or asks for what this engine does not model.
    """
    if not plan.plain:
        raise PlanError(f"the recursion cannot model a plan that wants {' and '.join(plan.wants.values())}")
    last = plan.completed_by(workload)
    compute = Compute(workload, plan, effects, workers)
    ready, starts, arrivals = compute.ready, [], []
    end: float = 0
    for bucket, completes in zip(plan.buckets, last, strict=True):
        start = max(end, bucket.release_time, compute.clock(ready[completes]))
        end = start + _price(bucket, cost, effects)
        compute.add_collective(start, end)
        starts.append(start)
        arrivals.append(end)
    copied = _copied(plan, effects.copy_out, compute.clock(compute.end), arrivals)

    def spans() -> tuple[Span, ...]:
        sent = [
            Span("all_reduce", "channel 0", bucket.layers, start, arrival, number)
            for number, (bucket, start, arrival) in enumerate(zip(plan.buckets, starts, arrivals, strict=True))
        ]
        return (*compute.spans(), *sent, *_after_backward(plan, workload.update_time, arrivals, copied))

    finish = copied[-1] + workload.update_time if workload.update_time else copied[-1]
    return Timeline(LateSpans(spans), workload.compute_time, finish)


def _copied(plan: Plan, copy_out: float, computed: float, arrivals: Sequence[float]) -> list[float]:
    """Seconds at which each bucket has been copied out, after the end of backward; without copies, one time for all.

    Bucket by bucket, in the order of the plan, its arrival is awaited and its gradients are copied back (reducer.cpp,
    ``finalize_backward``), so early buckets are dealt with while later ones are on their way. ``copy_out``: seconds per
    byte; ``computed``: when backward has ended.
    """
    if not copy_out:
        return [max([computed, *arrivals])]
    ends = [computed]
    for bucket, arrival in zip(plan.buckets, arrivals, strict=True):
        ends.append(max(ends[-1], arrival) + copy_out * bucket.size)
    return ends


def _after_backward(plan: Plan, update: float, arrivals: Sequence[float], copied: Sequence[float]) -> Iterator[Span]:
    """Spans between the end of backward and the end of the iteration: buckets copied out, and the update."""
    for number, (before, end) in enumerate(pairwise(copied)):
        start = max(before, arrivals[number])
        yield Span("copy", "compute", plan.buckets[number].layers, start, end, number)
    if update:
        yield Span("update", "compute", (), copied[-1], copied[-1] + update)


def communication_finish(release_times: Iterable[float], durations: Iterable[float]) -> float:
    """Seconds until the last of these collectives ends, without a timeline, for searches over many plans."""
    end: float = 0
    for release, duration in zip(release_times, durations, strict=True):
        end = max(end, release) + duration
    return end


def _price(bucket: Bucket, cost: Cost, effects: Effects) -> float:
    time: float = cost(bucket.size)
    if len(bucket.blocks) > 1 and effects.fusion_copy:
        time += effects.fusion_copy * bucket.size
    return time + effects.launch_latency if effects.launch_latency else time


class Compute:
    """The compute stream: when each gradient is ready in the stream's own time, and the wall clock at any such time.

    Its own time stands still for what slows it: ``ready`` and ``end`` count work, ``clock`` turns work into seconds.
    ``ready``, and ``extra`` of hooks and copies (empty without), are those of the gradients in ready order.
    """

    def __init__(self, workload: Workload, plan: Plan | None, effects: Effects, workers: int) -> None:
        """Start the stream; without a plan nothing is added for a framework's hooks and copies."""
        self.workload, self.effects, self.stretch = workload, effects, effects.stretch(workers)
        self.slowdown = effects.compute_slowdown
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.done: list[float] = []
        self.ready: Sequence[float] = workload.gradients.ready_times
        self.extra: Sequence[float] = ()
        self.end: float = workload.forward_time + workload.backward_time
        if plan is not None and (effects.copy_in or effects.hook_time):
            self._load(plan)
        elif self.stretch != 1:
            self.ready = [time * self.stretch for time in self.ready]
            self.end *= self.stretch

    def _load(self, plan: Plan) -> None:
        """Add the work of hooks, copies and stragglers."""
        hooks, gradients = Counter(plan.completed_by(self.workload)), self.workload.gradients
        copy_in, hook_time = self.effects.copy_in, self.effects.hook_time
        self.extra = [copy_in * size + hook_time * hooks[place] for place, size in enumerate(gradients.sizes)]
        added: float = 0
        ready: list[float] = []
        for time, extra in zip(gradients.ready_times, self.extra, strict=True):
            added += extra
            ready.append(time * self.stretch + added)
        self.ready = ready
        self.end = self.end * self.stretch + added

    def add_collective(self, start: float, end: float) -> None:
        """Slow computation down while a collective runs from ``start`` to ``end``; call it in the order of time."""
        if self.slowdown and end > start:
            self.done.append(self.progress(start))
            self.starts.append(start)
            self.ends.append(end)

    def progress(self, now: float) -> float:
        """Work done by ``now``, the inverse of :meth:`clock`."""
        last = bisect_right(self.starts, now) - 1
        if last < 0:
            return now
        end, done = self.ends[last], self.done[last] - self.starts[last] / (1 + self.slowdown)
        return done + now / (1 + self.slowdown) if now <= end else done + end / (1 + self.slowdown) + now - end

    def clock(self, work: float) -> float:
        """Seconds after the start of the iteration at which ``work`` is done."""
        if not self.done:
            return work
        last = bisect_right(self.done, work) - 1
        if last < 0:
            return work
        left = work - self.done[last]
        slowed = (self.ends[last] - self.starts[last]) / (1 + self.slowdown)
        return self.starts[last] + left * (1 + self.slowdown) if left <= slowed else self.ends[last] + left - slowed

    def spans(self) -> Sequence[Span]:
        """The spans of the compute stream, once all collectives are known."""
        if self.stretch == 1 and not self.extra and not self.done:
            return self.workload.computation
        extra = dict(zip(self.workload.gradients.names, self.extra, strict=False))
        forward: float = 0
        spans = []
        for layer in self.workload.layers:
            start, forward = forward, forward + layer.forward_time
            spans.append(self._span("forward", layer.name, start * self.stretch, forward * self.stretch))
        elapsed: float = 0
        added: float = 0
        for layer in reversed(self.workload.layers):
            # Summed as in Workload, so that a gradient is ready exactly when its span ends.
            start = (self.workload.forward_time + elapsed) * self.stretch + added
            elapsed += layer.backward_time
            added += extra.get(layer.name, 0)
            spans.append(
                self._span("backward", layer.name, start, (self.workload.forward_time + elapsed) * self.stretch + added)
            )
        return spans

    def _span(self, kind: str, layer: str, start: float, end: float) -> Span:
        return Span(kind, "compute", (layer,), self.clock(start), self.clock(end))


class Engine(NamedTuple):
    """An entry of ENGINES.

    carry_out: (workload, plan, pricing) -> Timeline; PlanError for a plan that it cannot model
    summary:   shown by ``osf list``
    seen:      the part of a pricing that it models: plans and bounds are made for that
    caveats:   assumptions of its predictions, beyond those of our engine
    plans:     those shown by default; empty for those that fit the rules asked for
    """

    carry_out: Callable[[Workload, Plan, Pricing], Timeline]
    summary: str
    seen: Callable[[Pricing], Pricing] = lambda pricing: pricing
    caveats: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()
