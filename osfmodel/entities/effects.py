"""Effects of a real run that the papers assume away, each a named term that can be switched on by itself.

All are off (0) unless a cluster file or the caller gives a value, which must be a measured or a cited one, or the
usual ones apply (``entities.files.usual_effects``). EFFECTS has the summary, the unit and the evidence of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError, require_time
from osfmodel.entities.lookup import require
from osfmodel.entities.rounding import plain_sum


@dataclass(frozen=True, slots=True)
class Effects:
    """Seconds, seconds per byte, or fractions; 0 switches an effect off.

    launch_latency:      seconds added to every collective
    hook_time:           seconds of the compute stream per bucket before it can be sent
    tensor_time:         seconds of the compute stream per tensor, in the framework's hook, before it can be sent
    copy_in:             seconds per byte of the compute stream, from gradients into a bucket, before it can be sent
    copy_out:            seconds per byte of the compute stream, bucket by bucket back into gradients, after backward
    group_time, member_time, group_copy: seconds of the host for each collective of a sharded group, for each tensor of
                         it, and per byte of it, before what the host launches next; where it blocks to communicate
    group_stall:         fraction of that time in which collectives in the background stand still, at most 1
    select, select_sent, select_time: seconds per byte of a gradient, per byte sent of it, and per tensor, of the
                         compute stream to choose what a sparse bucket sends and to keep the rest, before it can be sent
    spread, spread_received, spread_time: seconds per byte of a gradient, per byte received from all ranks, and per
                         tensor, of the compute stream to make means of the entries of a sparse bucket that has arrived
    mirror:              seconds per byte of the compute stream by which a mirror of the weights, instead of a
                         residual, lengthens the update
    fusion_copy:         seconds per byte of the communication stream, both ways, in collectives of several tensors
    negotiation:         seconds of each cycle of Horovod's loop in which the ranks agree on the tensors that all have
    negotiation_miss:    seconds of a cycle beyond that where something is not in Horovod's response cache, or in its
                         place where that is off
    compute_slowdown:    fraction by which computation takes longer while a collective runs
    node_slowdown:       fraction by which computation takes longer where several GPUs of a node compute
    straggler_deviation: standard deviation of compute time between workers, as a fraction of it
    """

    launch_latency: float = 0
    hook_time: float = 0
    tensor_time: float = 0
    copy_in: float = 0
    copy_out: float = 0
    group_time: float = 0
    member_time: float = 0
    group_copy: float = 0
    group_stall: float = 0
    select: float = 0
    select_sent: float = 0
    select_time: float = 0
    spread: float = 0
    spread_received: float = 0
    spread_time: float = 0
    mirror: float = 0
    fusion_copy: float = 0
    negotiation: float = 0
    negotiation_miss: float = 0
    compute_slowdown: float = 0
    node_slowdown: float = 0
    straggler_deviation: float = 0
    __repr__ = brief

    def __post_init__(self) -> None:
        for field in fields(self):
            require_time(getattr(self, field.name), f"the effect {field.name}")
        if self.group_stall > 1:
            raise UsageError(f"the effect group_stall is {float(self.group_stall):g}: it is a fraction, from 0 to 1")

    @property
    def apart_from_cost(self) -> Effects:
        """The effects without launch latency, for prices that include it and for runs that launch nothing."""
        return replace(self, launch_latency=0)

    @property
    def apart_from_compute(self) -> Effects:
        """The effects without those that lengthen computation whatever the plan."""
        return replace(self, tensor_time=0, node_slowdown=0)

    @property
    def active(self) -> Mapping[str, float]:
        """The effects that are on, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value}

    def stretch(self, workers: int) -> float:
        """Factor by which computation takes longer because the slowest of ``workers`` sets the pace.

        1 + deviation * E[largest of N standard normal variables]: the expected maximum of a jittered ready time.
        """
        return 1 + self.straggler_deviation * expected_maximum(workers) if self.straggler_deviation else 1


NO_EFFECTS = Effects()
REPLAYED_ON_CPU = {"what": "a replay", "device": "CPU"}
"""Conditions of a replay on a CPU, as ``osf run`` states them."""
COUNTED = {"hooks": "counted"}
"""Condition of a replay whose hooks do computation that belongs to the iteration."""
CITED_SLOWDOWN = 0.189
"""compute_slowdown as published: arXiv 2507.03114, mean over its models and GPUs."""


class Effect(NamedTuple):
    """An entry of EFFECTS.

    summary:  shown by ``osf list``
    unit:     of its value
    cited:    a published value, or None if it has to be measured
    evidence: the source of the value, or the way to measure one
    """

    summary: str
    unit: str
    cited: float | None
    evidence: str


EFFECTS: Mapping[str, Effect] = MappingProxyType(
    {
        "launch_latency": Effect(
            "time added to every collective", "s", None, "the intercept of small messages inside training"
        ),
        "hook_time": Effect(
            "compute stream per bucket before it is sent (hooks, kernel launches)",
            "s",
            None,
            "iteration time of one worker under DDP with many and with few buckets",
        ),
        "tensor_time": Effect(
            "compute stream per tensor, before it is sent (the framework's hook and its small kernels)",
            "s",
            None,
            "iteration time of one worker with and without DDP, by the number of tensors",
        ),
        "copy_in": Effect(
            "compute stream, gradients into a bucket (DDP)",
            "s/byte",
            None,
            "one worker with and without DDP: torch copies and divides each gradient (reducer.cpp)",
        ),
        "copy_out": Effect(
            "compute stream, each bucket back into gradients, after backward and its collective (DDP)",
            "s/byte",
            None,
            "one worker with and without DDP; none with gradient_as_bucket_view",
        ),
        "group_time": Effect(
            "host, each collective of a group of sharded parameters (hooks, views, splits), before the next one",
            "s",
            None,
            "`osf bench`: all ranks at once step through models of FSDP2 that compute and send nothing",
        ),
        "member_time": Effect(
            "host, each collective of such a group, for each of its tensors", "s", None, "`osf bench`: the same"
        ),
        "group_copy": Effect(
            "host, copies into and out of the buffer of such a collective, where computation is replayed",
            "s/byte",
            None,
            "`osf bench`: the same",
        ),
        "group_stall": Effect(
            "fraction of the host's work for a collective in which those in the background stand still (no free core)",
            "fraction",
            None,
            "`osf bench`: steps of FSDP2 that wait for each collective, and steps that launch them in the background",
        ),
        "select": Effect(
            "compute stream, the largest elements of a gradient out of all (sparse buckets)",
            "s/byte",
            None,
            "`osf bench`: all ranks at once add what was kept, take the largest, and keep the rest",
        ),
        "select_sent": Effect(
            "compute stream, choosing what a sparse bucket sends, for each byte that is sent",
            "s/byte",
            None,
            "`osf bench`: the same at two densities",
        ),
        "select_time": Effect(
            "compute stream, choosing what a sparse bucket sends, for each tensor, however small",
            "s",
            None,
            "`osf bench`: the same of small tensors",
        ),
        "spread": Effect(
            "compute stream, memory for the mean gradient, once a sparse bucket has arrived",
            "s/byte",
            None,
            "`osf bench`: all ranks at once make the mean of what all have sent",
        ),
        "spread_received": Effect(
            "compute stream, entries received from all ranks added up there, by their bytes",
            "s/byte",
            None,
            "`osf bench`: the same at two densities",
        ),
        "spread_time": Effect(
            "compute stream, the mean gradient of a sparse bucket, for each tensor, however small",
            "s",
            None,
            "`osf bench`: the same of small tensors",
        ),
        "mirror": Effect(
            "compute stream, mirror weights kept apart while weights are updated (sparse buckets)",
            "s/byte",
            None,
            "`osf bench`: what mirrors take beyond residuals, with nothing updated in between",
        ),
        "fusion_copy": Effect(
            "communication stream, into and out of the fusion buffer (Horovod)",
            "s/byte",
            None,
            "4 / memory bandwidth: read and write, in and out (horovod, FUSION_BUFFER copies)",
        ),
        "negotiation": Effect(
            "each cycle of Horovod's loop: ranks agree on what all of them have",
            "s",
            None,
            "`osf bench --executor horovod`: the median time from one cycle that finds nothing to the next",
        ),
        "negotiation_miss": Effect(
            "a cycle of Horovod's loop with something that is not in its response cache, beyond the negotiation",
            "s",
            None,
            "`osf bench --executor horovod`: the same with the response cache off",
        ),
        "compute_slowdown": Effect(
            "computation takes longer by this fraction while a collective runs",
            "fraction",
            CITED_SLOWDOWN,
            "mean of 18.9 % (at most 40 %) over models and GPUs, arXiv 2507.03114",
        ),
        "node_slowdown": Effect(
            "computation takes longer by this fraction where several GPUs of a node compute (host, power, memory)",
            "fraction",
            None,
            "iteration time of 2 to 8 GPUs of a node that send little, over that of one alone",
        ),
        "straggler_deviation": Effect(
            "standard deviation of compute time between workers",
            "fraction",
            None,
            "spread of the workers' own compute times; the slowest of N sets the pace",
        ),
    }
)


def effects_of(values: Mapping[str, float | None]) -> Effects:
    """Effects by name; None takes the cited value. Raises UsageError for an unknown name or one without a citation."""
    chosen = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        cited = require(key, EFFECTS, "effect").cited
        if value is None and cited is None:
            example = {"s": "20us", "s/byte": "1e-11"}.get(EFFECTS[key].unit, "5%")
            raise UsageError(f"the effect {key} has no published value: give yours, such as --effect {key}={example}")
        chosen[key] = cited if value is None else value
    return Effects(**{key: value for key, value in chosen.items() if value is not None})


@lru_cache(maxsize=256)
def expected_maximum(workers: int) -> float:
    """E[max] of ``workers`` independent standard normal variables: 0 for one, 0.564 for two, about sqrt(2 ln N).

    The integral of x d(Phi(x)^N), by Simpson's rule on -9..9 in steps of 0.01 (12 digits).
    """
    if workers < 2:
        return 0.0
    step, terms = 0.01, 1800

    def survival(x: float) -> float:
        """P(max > x) - P(max < -x), whose integral over x > 0 is the mean."""
        below, mirrored = 0.5 * math.erfc(-x / math.sqrt(2)), 0.5 * math.erfc(x / math.sqrt(2))
        return float(1 - below**workers - mirrored**workers)

    weights = [1, *([4, 2] * (terms // 2 - 1)), 4, 1]
    return plain_sum(weight * survival(k * step / 2) for k, weight in enumerate(weights)) * step / 6
