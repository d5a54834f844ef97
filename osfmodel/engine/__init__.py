"""One iteration: workload, plan, pricing -> timeline, memory, error band.

This is ``auto``, the model of this package. ENGINES also has models of others, which can be asked for by name.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from osfmodel.cost.pricing import Pricing
from osfmodel.engine import recursion
from osfmodel.engine.recursion import Engine
from osfmodel.entities.batches import accumulating
from osfmodel.entities.lookup import LateTable, require
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload

if TYPE_CHECKING:
    from osfmodel.engine.run import Run


def predict_timeline(workload: Workload, plan: Plan, pricing: Pricing, like: Timeline | None = None) -> Timeline:
    """One iteration of ``workload`` under ``plan`` at the prices of ``pricing``.

    like: a timeline of the plan for as many workers and the same tensors, at other prices or times of computation

    Each channel of the plan keeps as many collectives in flight as ``pricing`` says. Both engines agree where both
    apply. Raises PlanError if the plan does not belong to the workload.
    """
    workload, pricing = pricing.loaded(workload)
    if pricing.in_flight > 1:
        plan = plan.under(pricing.rules(plan.objective))
    workload, plan = plan.computed(workload)
    if plan.plain:
        return recursion.predict_timeline(workload, plan, pricing.cost(), pricing.effects, pricing.workers)
    return simulate(workload, plan, pricing, like)


def simulate(workload: Workload, plan: Plan, pricing: Pricing, like: Timeline | None = None) -> Timeline:
    """One iteration in the steady state. Raises PlanError if the plan does not belong to the workload."""
    from osfmodel.engine.run import SIMULATED, LongRun  # not loaded where all plans are plain

    workload, pricing = pricing.loaded(workload)
    count = plan.sharding.micro_batches if plan.sharding else 1
    workload, plan = plan.computed(workload)
    alone = accumulating(workload, count).compute_time
    if plan.sharding is None or count <= SIMULATED or any(bucket.release_time for bucket in plan.buckets):
        return _executed(workload, plan, pricing, like).timeline(alone)
    short = replace(plan, sharding=replace(plan.sharding, micro_batches=SIMULATED))
    run = LongRun(_executed(workload, short, pricing, like), partial(_executed, workload, plan, pricing))
    return run.timeline(alone, count)


def _executed(workload: Workload, plan: Plan, pricing: Pricing, like: Timeline | None = None) -> Run:
    """The run of a step, or, ``like`` a longer one, of its first micro-batches."""
    from osfmodel.engine.run import (
        issued_run,
        run_in_order,  # these are not loaded where all plans are plain
    )
    from osfmodel.engine.simulator import run
    from osfmodel.engine.strategies import lower
    from osfmodel.engine.works import timed

    known = issued_run(like, short=True)
    program = lower(workload, plan, pricing) if known is None else timed(known.program, workload, pricing)
    return run_in_order(program, pricing) or run(program, pricing)


def without_priority(workload: Workload, plan: Plan, pricing: Pricing) -> Plan:
    """``plan`` without its credit: its buckets in a fixed order, the one in which they would be sent here.

    The use of priority is lost: where computation or the network is not as predicted, a more urgent bucket
    no longer overtakes. Nor is there a limit to the bytes handed over: with one channel that changes nothing, since one
    bucket is under way at a time and the order is the same; with several, as many are under way as there are channels,
    whatever the credit. A plan without a credit is returned as it is. Raises as :func:`simulate`.
    """
    if plan.credit is None:
        return plan
    from osfmodel.engine.simulator import run
    from osfmodel.engine.strategies import lower

    workload, pricing = pricing.loaded(workload)
    program = lower(workload, plan, pricing)
    begun = [number for numbers in run(program, pricing).begun.values() for number in numbers]
    order = dict.fromkeys(program.operations[number].bucket for number in begun)
    return replace(plan, buckets=tuple(plan.buckets[number] for number in order), credit=None)


AUTO = "auto"
ENGINES: LateTable[Engine] = LateTable(
    {
        AUTO: Engine(
            predict_timeline, "our model: the recursion, or the simulator where a plan needs it, with effects"
        ),
        "osf": "engine.osf_model:ENGINE",
    }
)


def engine_called(name: str) -> Engine:
    """The entry of ENGINES called ``name``. Raises UsageError for an unknown one."""
    return require(name, ENGINES, "engine")
