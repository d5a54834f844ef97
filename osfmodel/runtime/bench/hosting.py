"""Measure the host's work for each collective of FSDP2: hooks, views, splits and copies of the groups of a model.

A small model is sharded as ``osf run --executor fsdp2`` shards a replay. It computes nothing and sends nothing, so that
what is left of a step is the host's. All ranks at once, from barrier to barrier: those of one host share its cores, and
the last one to launch a collective decides when that begins.

Where ranks have no core to spare, collectives in the background stand still while hosts work. The fraction is fitted:
with it the engine's step takes as long as the measured one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost
from osfmodel.engine import predict_timeline
from osfmodel.entities.effects import Effects
from osfmodel.entities.modules import wrapped
from osfmodel.entities.plan import Plan
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.bench.computation import non_negative
from osfmodel.runtime.job.measuring import CollectiveJob
from osfmodel.runtime.sharded import mesh_of, replay_of_groups, shard, sharded_replay_step
from osfmodel.runtime.sharded.communication import ShardedCommunication
from osfmodel.runtime.training.pace import SleepingPace

STEPS, ROUNDS = 3, 5
"""Steps between two barriers, and rounds, of which the first does not count."""
FLOAT = 4
"""Bytes of an element."""
COLLECTIVES = 3
"""Of each group in a step: gathered in forward and in backward, and reduced."""
NAMES = ("group_time", "member_time", "group_copy")


class Shape(NamedTuple):
    """Groups of a model, the tensors of each, and the elements of a tensor."""

    groups: int
    tensors: int
    elements: int

    @property
    def row(self) -> tuple[float, ...]:
        """Number of steps (1), collectives, their tensors, and their bytes."""
        count = COLLECTIVES * self.groups
        return 1.0, count, count * self.tensors, count * self.tensors * self.elements * FLOAT


SHAPES = (Shape(3, 1, 1 << 8), Shape(12, 1, 1 << 8), Shape(3, 6, 1 << 8), Shape(12, 6, 1 << 8), Shape(6, 2, 1 << 18))
BESIDE = (Shape(12, 6, 1 << 8), Shape(12, 4, 1 << 15))
"""Shapes whose collectives take about as long as the host's work for them, for ``group_stall``."""


def hosting(job: CollectiveJob) -> dict[str, float]:
    """Effects of the host's work: ``group_time`` and ``member_time`` (s), ``group_copy`` (s/byte), by least squares of
    relative errors, and ``group_stall`` (a fraction). Raises RuntimeError if a collective fails.
    """
    found = non_negative([shape.row for shape in SHAPES], [_step(job, shape) for shape in SHAPES])
    longer, most = (sum(column) for column in zip(*(_stalled(job, shape) for shape in BESIDE), strict=True))
    return dict(zip(NAMES, found[1:], strict=True)) | {
        "group_stall": min(max(longer / most, 0.0), 1.0) if most else 0.0
    }


def _stalled(job: CollectiveJob, shape: Shape) -> tuple[float, float]:
    """Seconds by which a step with collectives in the background is longer than if they never stood still while the
    host works: measured, and if they always did.
    """
    silent, blocking, background = (
        _step(job, shape, sends, behind) for sends, behind in ((False, True), (True, False), (True, True))
    )
    count = COLLECTIVES * shape.groups
    cost = AffineCost(((max(blocking - silent, 0) / count, 0.0),))
    costs = dict.fromkeys(("all_gather", "reduce_scatter"), cost)
    pricing = Pricing(costs, job.workers, blocking=True, replayed=True)
    least, most = (
        predict_timeline(*_model(shape), replace(pricing, effects=effects)).iteration_time
        for effects in (Effects(group_time=silent / count, group_stall=part) for part in (0.0, 1.0))
    )
    return background - least, most - least


def _model(shape: Shape, background: bool = True) -> tuple[Workload, Plan]:
    """A model of that shape, and a plan with a group per block."""
    layers = [
        Layer(f"{group}.{place}", 1e-9, 1e-9, FLOAT * shape.elements, shape=(shape.elements,))
        for group in range(shape.groups)
        for place in range(shape.tensors)
    ]
    workload = Workload("hosts", tuple(layers))
    groups = [ParameterGroup((str(group),), forward_prefetch=1) for group in range(shape.groups)]
    return workload, wrapped(workload, groups, Sharding((), asynchronous=background))


def _step(job: CollectiveJob, shape: Shape, sends: bool = False, background: bool = True) -> float:
    """Seconds of a step between barriers, the median over rounds of the slowest rank."""
    workload, plan = _model(shape, background)
    pace = SleepingPace()
    communication = ShardedCommunication(asynchronous=background, inputs=1, waiting=pace.waiting)
    communication.silent = not sends
    model = replay_of_groups(workload, plan, pace)
    assert plan.sharding is not None
    shard(model, plan, workload, mesh_of(plan.sharding, job.workers), communication)
    step = sharded_replay_step(pace, communication.finish, 0.0)
    own: list[float] = []
    for _ in range(ROUNDS):
        communication.sent.clear()
        job.barrier()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step(model)
        job.barrier()
        own.append((time.perf_counter() - begin) / STEPS)
    return float(median(map(max, zip(*job.gather(own[1:]), strict=True))))
