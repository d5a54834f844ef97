"""Horovod: a background loop that wakes every cycle and fuses what it finds, up to a threshold.

Each cycle takes all gradients submitted by then, in order, and packs them greedily into batches of one dtype up to
the threshold: a batch that is full by size is sent, a tensor of another dtype may be passed over while the batch and
what was passed over stay within the threshold, a tensor above the threshold travels alone. The loop waits for the last
tensor of a batch to be computed before it launches it (which matters where the host runs ahead), and the next cycle
starts one cycle time after this one started, or at once if that is past. Collectives themselves are asynchronous
(NCCL). Source: horovod/common/controller.cc and operations.cc; defaults 128 MiB and 1 ms.

Cycles are taken to tick from the start of the iteration. Negotiation, copies in and out of the fusion buffer and the
rounding of the threshold are left out. With ``groups=`` of DistributedOptimizer the batches are given by hand: a group
is sent at the first cycle that finds all of it.
"""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from osfmodel.cost import Cost
from osfmodel.errors import PlanError
from osfmodel.plan import Plan, grouped_plan
from osfmodel.recursion import communication_finish, predict_timeline
from osfmodel.solve import Limits
from osfmodel.solve.contiguous import allowed
from osfmodel.targets.target import Target, require_plain
from osfmodel.units import MIB
from osfmodel.workload import Gradients, Workload

DEFAULT_THRESHOLD = 128 * MIB
DEFAULT_CYCLE = 0.001
CYCLES = (0.0001, 0.0002, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1)
"""Cycle times tried, seconds: a tenth of the default up to the 100 ms at which Horovod's own tuner stops."""
THRESHOLDS_TRIED = 24


@dataclass(frozen=True, slots=True)
class HorovodKnobs:
    """Fusion threshold in bytes, cycle time in seconds, and groups of tensor names for an exact plan.

    ``use_groups`` says whether the groups are part of the recommendation, or only on offer.
    """

    threshold: int = DEFAULT_THRESHOLD
    cycle: float = DEFAULT_CYCLE
    groups: tuple[tuple[str, ...], ...] = ()
    use_groups: bool = False


def realise(knobs: HorovodKnobs, workload: Workload) -> Plan:
    """The batches that Horovod's loop forms, each released at the cycle that finds it."""
    return grouped_plan(workload, *batches(knobs, workload.gradients))


def batches(knobs: HorovodKnobs, gradients: Gradients) -> tuple[list[list[int]], list[float]]:
    """What is sent together, as positions in ready order, and when the loop launches it."""
    return _grouped(knobs, gradients) if knobs.use_groups else _fused(knobs.threshold, knobs.cycle, gradients)


def _fused(threshold: int, cycle: float, gradients: Gradients) -> tuple[list[list[int]], list[float]]:
    order = sorted(range(len(gradients)), key=gradients.enqueue_times.__getitem__)
    submitted = [gradients.enqueue_times[i] for i in order]
    groups: list[list[int]] = []
    releases: list[float] = []
    now, first = 0.0, 0
    while first < len(order):
        started = now = _next_cycle(now, cycle, submitted[first])
        after = bisect_right(submitted, now)
        for batch in fuse(order[first:after], gradients, threshold):
            now = max(now, *[gradients.ready_times[i] for i in batch])
            groups.append(batch)
            releases.append(now)
        now, first = max(now, started + cycle), after
    return groups, releases


def _next_cycle(now: float, cycle: float, submitted: float) -> float:
    """The first tick, from ``now`` on every ``cycle``, that finds something submitted at ``submitted``."""
    if submitted <= now:
        return now
    if not cycle:
        return submitted
    ticks = math.ceil((submitted - now) / cycle)
    return max(now + ticks * cycle, submitted)


def fuse(found: Sequence[int], gradients: Gradients, threshold: int) -> Iterator[list[int]]:
    """Horovod's FuseResponses over the gradients that one cycle found, in order."""
    rest = list(found)
    while rest:
        batch, passed = [rest[0]], []
        held, skipped = gradients.sizes[rest[0]], 0
        tail = rest[1:]
        while tail:
            i = tail[0]
            if gradients.dtypes[i] != gradients.dtypes[batch[0]]:
                skipped += gradients.sizes[i]
                if held + skipped > threshold:
                    break
                passed.append(tail.pop(0))
            elif held + gradients.sizes[i] > threshold:
                break
            else:
                held += gradients.sizes[i]
                batch.append(tail.pop(0))
        yield batch
        rest = passed + tail


def _grouped(knobs: HorovodKnobs, gradients: Gradients) -> tuple[list[list[int]], list[float]]:
    position = {name: i for i, name in enumerate(gradients.names)}
    groups = [[position[name] for name in group] for group in knobs.groups]
    complete = [max(gradients.enqueue_times[i] for i in group) for group in groups]
    now = 0.0
    order = sorted(range(len(groups)), key=complete.__getitem__)
    releases = []
    for k in order:
        now = max(_next_cycle(now, knobs.cycle, complete[k]), *[gradients.ready_times[i] for i in groups[k]])
        releases.append(now)
    return [groups[k] for k in order], releases


def exact(plan: Plan, workload: Workload) -> HorovodKnobs:
    """Knobs that form exactly this plan: its buckets, their order, and the cycle that releases each.

    Tried are the cycles of CYCLES with every threshold that the sizes can tell apart, then the plan as groups. Raises
    PlanError where none of them forms it.
    """
    require_plain(plan, workload, "Horovod")
    ready = dict(zip(workload.gradients.names, workload.gradients.ready_times, strict=True))
    if all(bucket.release_time >= max(ready[block.layer] for block in bucket.blocks) for bucket in plan.buckets):
        names = _names(plan)
        thresholds = dict.fromkeys([DEFAULT_THRESHOLD, *(_whole_mib(bucket.size) for bucket in plan.buckets)])
        cycles = dict.fromkeys([DEFAULT_CYCLE, *CYCLES])
        settings = [HorovodKnobs(threshold, cycle, names) for cycle in cycles for threshold in thresholds]
        settings += [HorovodKnobs(max(thresholds), cycle, names, use_groups=True) for cycle in cycles]
        for knobs in settings:
            if realise(knobs, workload) == plan:
                return knobs
    raise PlanError("no cycle time, threshold or groups that are tried make Horovod form this plan")


def _names(plan: Plan) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(block.layer for block in bucket.blocks) for bucket in plan.buckets)


def _whole_mib(size: int) -> int:
    return -(-size // MIB) * MIB


def project(plan: Plan, workload: Workload, cost: Cost, limits: Limits = Limits()) -> HorovodKnobs:
    """What forms exactly this plan, else the best threshold and cycle found, and the plan itself as groups.

    Groups are then recommended where they win 0.5 %. The search is over CYCLES and thresholds among the plan's own
    bucket sizes and powers of two; not exhaustive. Settings whose batches break ``limits`` are passed over, so groups
    may be all that is left. Raises PlanError for a plan that Horovod cannot carry out.
    """
    gradients = workload.gradients
    with suppress(PlanError):
        knobs = exact(plan, workload)
        if allowed(batches(knobs, gradients)[0], gradients, limits):
            return knobs
    require_plain(plan, workload, "Horovod")
    names = _names(plan)
    thresholds = _thresholds(plan, workload.gradient_bytes)
    settings = [HorovodKnobs(threshold, cycle, names) for cycle in CYCLES for threshold in thresholds]
    grouped = [HorovodKnobs(max(thresholds), cycle, names, use_groups=True) for cycle in CYCLES[:2]]
    by_hand = min(grouped, key=lambda knobs: _finish(knobs, gradients, cost))
    if limits != Limits():
        settings = [knobs for knobs in settings if allowed(batches(knobs, gradients)[0], gradients, limits)]
    if not settings:
        return by_hand
    best = min(settings, key=lambda knobs: _finish(knobs, gradients, cost))
    by_groups, by_settings = (
        predict_timeline(workload, realise(knobs, workload), cost).iteration_time for knobs in (by_hand, best)
    )
    return by_hand if by_groups < 0.995 * by_settings else best


def _finish(knobs: HorovodKnobs, gradients: Gradients, cost: Cost) -> float:
    groups, releases = batches(knobs, gradients)
    return communication_finish(releases, [cost(sum(gradients.sizes[i] for i in group)) for group in groups])


def _thresholds(plan: Plan, total: int) -> list[int]:
    """Whole MiB, so that environment, flag and YAML say the same: powers of two, the plan's sizes, the default."""
    powers = [2**k for k in range(20, 28) if 2**k < total]
    sizes = sorted({_whole_mib(bucket.size) for bucket in plan.buckets})
    step = max(1, len(sizes) // (THRESHOLDS_TRIED - len(powers)))
    return sorted({*powers, *sizes[::step], *sizes[-1:], DEFAULT_THRESHOLD})


def caveats(workload: Workload) -> tuple[str, ...]:
    """What the prediction takes for granted."""
    known = any(layer.enqueue_time is not None for layer in workload.layers)
    host = "" if known else ", with the host in step with the device (ahead, it would fuse more)"
    return (f"Horovod is predicted from its source{host}, not checked against runs",)


def config(knobs: HorovodKnobs) -> dict[str, Any]:
    """Environment variables, and the groups of an exact plan (``use_groups`` tells whether they are recommended)."""
    return {
        "env": _environment(knobs),
        "use_groups": knobs.use_groups,
        "groups": [list(group) for group in knobs.groups],
    }


def _environment(knobs: HorovodKnobs) -> dict[str, str]:
    environment = {
        "HOROVOD_FUSION_THRESHOLD": str(knobs.threshold),
        "HOROVOD_CYCLE_TIME": f"{knobs.cycle * 1000:g}",
    }
    return {**environment, "HOROVOD_DISABLE_GROUP_FUSION": "1"} if knobs.use_groups else environment


def render(knobs: HorovodKnobs, workload: Workload) -> str:
    """An env file, the horovodrun flags, the YAML of --config-file, and Python for ``groups=``."""
    groups = "".join(f"#     {line}\n" for group in knobs.groups for line in _wrapped(list(group)))
    advice = "part of this recommendation" if knobs.use_groups else "only if you want the exact plan"
    return TEMPLATE.format(
        name=workload.name,
        environment="\n".join(f"{key}={value}" for key, value in _environment(knobs).items()),
        mb=knobs.threshold // MIB,
        ms=f"{knobs.cycle * 1000:g}",
        groups=groups,
        advice=advice,
    )


def _wrapped(names: list[str]) -> list[str]:
    """A Python list of names on lines of a readable width."""
    return textwrap.wrap(f"{names!r},", 108, subsequent_indent=" ", break_long_words=False, break_on_hyphens=False)


TEMPLATE = """\
# Horovod settings for {name}.
# 1. Environment file (threshold in bytes, cycle in milliseconds):
{environment}

# 2. The same as horovodrun flags (threshold in MiB):
#    horovodrun --fusion-threshold-mb {mb} --cycle-time-ms {ms} ...

# 3. The same as YAML for horovodrun --config-file:
#    params:
#      fusion_threshold_mb: {mb}
#      cycle_time_ms: {ms}

# 4. Python, {advice} (set HOROVOD_DISABLE_GROUP_FUSION=1):
# names = [
{groups}# ]
# parameters = dict(model.named_parameters())
# optimizer = hvd.DistributedOptimizer(
#     optimizer,
#     named_parameters=model.named_parameters(),
#     groups=[[parameters[name] for name in group] for group in names],
# )
"""

TARGET = Target(
    "Horovod with its default fusion threshold, 128 MiB, and cycle time, 1 ms",
    HorovodKnobs,
    project,
    realise,
    config,
    render,
    caveats=caveats,
    exact=exact,
)
