"""The closed form: collectives in order on one channel, and a barrier before the next forward.

With ready times r_k (of the last gradient in bucket k) and message sizes s_k, in the order of the plan,

    start_k = max(end_{k-1}, r_k),   end_k = start_k + T(s_k),   t_iter = max(t_f + t_b, end_K) + t_u

MG-WFBP (TPDS'21), Eq. 6-8, with buckets in the place of layers. Only +, max and the cost itself touch a time, and
clocks start at the integer 0, so rational input gives rational output.
"""

from __future__ import annotations

from collections.abc import Iterable

from osfmodel.cost import Cost
from osfmodel.errors import PlanError
from osfmodel.plan import Plan
from osfmodel.timeline import Span, Timeline
from osfmodel.workload import Workload


def predict_timeline(workload: Workload, plan: Plan, cost: Cost) -> Timeline:
    """One iteration of ``workload`` under ``plan`` with collectives priced by ``cost``.

    Raises PlanError where the plan does not belong to the workload, or asks for what this engine does not model.
    """
    _require_supported(plan)
    plan.require_valid(workload)
    spans = _compute_spans(workload)
    backward_end = workload.forward_time + workload.backward_time
    ready = dict(zip(workload.gradients.names, workload.gradients.ready_times, strict=True))
    end: float = 0
    for bucket in plan.buckets:
        layers = tuple(block.layer for block in bucket.blocks)
        start = max(end, bucket.release_time, *[ready[layer] for layer in layers])
        end = start + cost(bucket.size)
        spans.append(Span("all_reduce", "channel 0", layers, start, end))
    finish = max(backward_end, end)
    if workload.update_time:
        spans.append(Span("update", "compute", (), finish, finish + workload.update_time))
    return Timeline(tuple(spans), workload.compute_time, finish + workload.update_time)


def communication_finish(release_times: Iterable[float], durations: Iterable[float]) -> float:
    """When the last of these collectives ends: the recursion without the timeline, for searches over many plans."""
    end: float = 0
    for release, duration in zip(release_times, durations, strict=True):
        end = max(end, release) + duration
    return end


def _require_supported(plan: Plan) -> None:
    asked = {"channels above 1": plan.channels > 1, "forward_overlap": plan.forward_overlap, "split": plan.split}
    for feature, wanted in asked.items():
        if wanted:
            raise PlanError(f"the plan uses {feature}, which the recursion engine cannot model: set it to its default")


def _compute_spans(workload: Workload) -> list[Span]:
    clock: float = 0
    spans = []
    for layer in workload.layers:
        start, clock = clock, clock + layer.forward_time
        spans.append(Span("forward", "compute", (layer.name,), start, clock))
    elapsed: float = 0
    for layer in reversed(workload.layers):
        # Summed as in Workload, so that a gradient is ready exactly when its span ends.
        start, elapsed = workload.forward_time + elapsed, elapsed + layer.backward_time
        spans.append(Span("backward", "compute", (layer.name,), start, workload.forward_time + elapsed))
    return spans
