"""Peak memory of training steps of real models, as PyTorch's own tracker counts it (benchmarks/memory.py).

Each run is predicted from the bundled profile of its model, made at another batch size in an ordinary loop, and the
plan that the executor was given; without one, gradients are kept as an ordinary loop keeps them. Nothing is fitted. A
run at the profile's own batch size would be no prediction, and does not count.

Collectives are taken to cost nothing: those of the runs ended when they began.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.entities.batches import at_batch
from osfmodel.entities.executors import LOCAL, RUNTIME
from osfmodel.entities.files import profiles
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import in_one
from osfmodel.entities.workload import Workload
from osfmodel.ledger.recipe import label_of, stated_plan
from osfmodel.ledger.results import Row, Verdict

PRICING = Pricing.of(FREE)


def judge(measurements: Sequence[Measurement]) -> Verdict:
    """Predict all runs."""
    return Verdict(tuple(map(_row, measurements)), "nothing: one profile of each model, at another batch size")


def _row(run: Measurement) -> Row:
    size = int(run.condition("batch_size"))
    if "published" in run.plan:
        return Row(label_of(run), run.measured, None, note="of a form that our executor does not have: measured only")
    workload = _workload(run.workload, size)
    plan = stated_plan(dict(run.conditions), workload, PRICING)
    executor = LOCAL if plan is None else RUNTIME
    plan = in_one(workload) if plan is None else plan
    memory = memory_of(workload, plan, predict_timeline(workload, plan, PRICING), run.workers, executor.name)
    own = _profile(run.workload).batch_size == size
    return Row(label_of(run), run.measured, memory.peak.bytes, fitted=own)


@cache
def _profile(name: str) -> Workload:
    return profiles.load_workload(name)


@cache
def _workload(name: str, size: int) -> Workload:
    return at_batch(_profile(name), size)
