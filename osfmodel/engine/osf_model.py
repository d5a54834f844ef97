"""OSF's own model (WWW'22): the scaling factor from overlap and tensor fusion. A reconstruction.

Only the paper's abstract is public. It says that the model is a recursion that captures overlap and tensor fusion, and
that fusion may adapt instead of filling a constant buffer; the equations are ours. Gradients collect in a buffer, one
for each type. Batch k of s_k bytes closes at c_k and waits for t_neg of negotiation,

    start_k = max(end_{k-1}, c_k + t_neg),   end_k = start_k + T(s_k),   t_iter = max(t_f + t_b, end_K) + t_u

and the scaling factor is t_iter on one worker over t_iter on N. With a *constant buffer* a batch closes when the buffer
is full, at the latest at the first tick of the cycle clock from its first tensor on. *Adaptive*: it closes when the
channel is free, and holds all that is ready by then (idle flush); the other natural rule is the plan ``optimal``.

A rule of fusion makes a plan whose release times are c_k + t_neg (none where a free channel is all that a batch waits
for), and that plan is run by ``engine.recursion``, which is this very recursion. The model leaves out
effects, several collectives in flight, forward overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import Cost
from osfmodel.engine import recursion
from osfmodel.engine.recursion import Engine
from osfmodel.entities.effects import NO_EFFECTS
from osfmodel.entities.errors import PlanError, UsageError, require_count, require_time
from osfmodel.entities.filling import Closes, fill
from osfmodel.entities.plan import Plan, grouped_plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.units import parse_bytes, parse_time
from osfmodel.entities.workload import Workload

NAME = "osf"
CAVEAT = (
    "OSF's model is a reconstruction, since only its abstract is public: overlap and tensor fusion, without effects, "
    "and one collective in flight"
)
PREFIX = "osf:"
"""Prefix of plans that are made by these rules of fusion."""
ADAPTIVE = "adaptive"
CONSTANT_PLAN, ADAPTIVE_PLAN = f"{PREFIX}64MiB,5ms", f"{PREFIX}{ADAPTIVE}"
"""Names of the plans with Horovod's defaults up to November 2020, and with the rule that replaces them."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """Tensor fusion with a buffer of constant size.

    buffer:      bytes that a batch may hold; a larger tensor goes alone, and with 0 every tensor does
    cycle:       seconds from tick to tick of a clock that starts with the iteration; None for no clock, where a batch
                 that is not full waits for the last gradient of its type
    negotiation: seconds between the close of a batch and its start

    Raises DataError for numbers that cannot be.
    """

    buffer: int
    cycle: float | None = None
    negotiation: float = 0

    def __post_init__(self) -> None:
        require_count(self.buffer, "the fusion buffer")
        require_time(0 if self.cycle is None else self.cycle, "the cycle time")
        require_time(self.negotiation, "the negotiation time")

    def tick(self, ready: float) -> float:
        """The first tick at ``ready`` or later."""
        if self.cycle is None:
            return math.inf
        return max(-(-ready // self.cycle) * self.cycle, ready) if self.cycle else ready


def predict_timeline(workload: Workload, plan: Plan, pricing: Pricing) -> Timeline:
    """One iteration under ``plan``, made by any rule. Raises PlanError for a plan beyond the model."""
    workload, plan = plan.computed(workload)
    if not plan.plain:
        raise PlanError(f"the engine {NAME} knows one channel, a fixed order and a barrier: take the engine auto")
    return replace(recursion.predict_timeline(workload, plan, pricing.cost()), engine=NAME)


def seen(pricing: Pricing) -> Pricing:
    """The part of ``pricing`` that the model uses."""
    return replace(pricing, effects=NO_EFFECTS, in_flight=1)


def fused(workload: Workload, fusion: Fusion) -> Plan:
    """The plan of the batches of a constant buffer."""
    gradients = workload.gradients
    ready = gradients.ready_times
    ticks = [fusion.tick(time) for time in ready]
    closes = Closes(
        full=lambda held, number: held >= fusion.buffer,
        over=lambda held, batch, i: held > fusion.buffer or ticks[batch[0]] < ready[i],
    )

    def close(place: int | None, batch: list[int]) -> float:
        if place is None:
            return ready[batch[-1]] if fusion.cycle is None else ticks[batch[0]]
        return min(ticks[batch[0]], ready[place])

    filled = (found for chain in gradients.chains for found in fill(chain, gradients.sizes, closes))
    closed = sorted((close(place, batch), batch) for place, batch in filled)
    return grouped_plan(workload, [batch for _, batch in closed], [time + fusion.negotiation for time, _ in closed])


def idle_flush(workload: Workload, cost: Cost, negotiation: float = 0) -> Plan:
    """Adaptive fusion: whenever the channel is free, send all ready gradients of the type that waits longest."""
    gradients = workload.gradients
    waiting = list(range(len(gradients)))
    batches: list[list[int]] = []
    starts: list[float] = []
    end: float = 0
    while waiting:
        first = waiting[0]
        now = max(end, gradients.ready_times[first])
        taken = [
            i for i in waiting if gradients.ready_times[i] <= now and gradients.dtypes[i] == gradients.dtypes[first]
        ]
        batches.append(taken)
        starts.append(now + negotiation)
        end = starts[-1] + cost(sum(gradients.sizes[i] for i in taken))
        left_out = set(taken)
        waiting = [i for i in waiting if i not in left_out]
    return grouped_plan(workload, batches, starts if negotiation else None)


def rule_of(name: str) -> Callable[[Workload, Cost], Plan]:
    """The rule that makes the plan called ``osf:BUFFER[,CYCLE[,NEGOTIATION]]`` or ``osf:adaptive[,NEGOTIATION]``.

    As in ``osf:64MiB,5ms``. Raises UsageError for anything else.
    """
    buffer, *times = name.removeprefix(PREFIX).split(",")
    if len(times) > 2 - (buffer == ADAPTIVE):
        forms = f"{PREFIX}BUFFER[,CYCLE[,NEGOTIATION]], as in {CONSTANT_PLAN}, or {PREFIX}{ADAPTIVE}[,NEGOTIATION]"
        raise UsageError(f"plan {name!r}: write {forms}")
    seconds = [parse_time(time) for time in times]
    if buffer == ADAPTIVE:
        return lambda workload, cost: idle_flush(workload, cost, *seconds)
    fusion = Fusion(parse_bytes(buffer), *seconds)
    return lambda workload, cost: fused(workload, fusion)


ENGINE = Engine(
    predict_timeline,
    "OSF's recursion of overlap and tensor fusion (WWW'22), reconstructed from its abstract",
    seen,
    (CAVEAT,),
    ("wfbp", "single", CONSTANT_PLAN, ADAPTIVE_PLAN, "optimal"),
)
