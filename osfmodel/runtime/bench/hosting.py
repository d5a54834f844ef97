"""Measure the host's work for each collective of FSDP2: hooks, views, splits and copies of the groups of a model.

A small model is sharded as ``osf run --executor fsdp2`` shards a replay. It computes nothing and sends nothing, so that
what is left of a step is the host's. All ranks at once, from barrier to barrier: those of one host share its cores, and
the last one to launch a collective decides when that begins.
"""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

from osfmodel.entities.modules import wrapped
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.bench.computation import non_negative
from osfmodel.runtime.job.measuring import CollectiveJob
from osfmodel.runtime.sharded.communication import ShardedCommunication
from osfmodel.runtime.sharded.model import mesh_of, replay_of_groups, shard, sharded_replay_step
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


def hosting(job: CollectiveJob) -> dict[str, float]:
    """Effects of the host's work by name, by least squares of relative errors. Raises RuntimeError as torch does."""
    found = non_negative([shape.row for shape in SHAPES], [_step(job, shape) for shape in SHAPES])
    return dict(zip(NAMES, found[1:], strict=True))


def _step(job: CollectiveJob, shape: Shape) -> float:
    """Seconds of a step between barriers, the median over rounds of the slowest rank."""
    layers = [
        Layer(f"{group}.{place}", 1e-9, 1e-9, FLOAT * shape.elements, shape=(shape.elements,))
        for group in range(shape.groups)
        for place in range(shape.tensors)
    ]
    workload = Workload("hosts", tuple(layers))
    groups = [ParameterGroup((str(group),), forward_prefetch=1) for group in range(shape.groups)]
    plan = wrapped(workload, groups, Sharding((), asynchronous=True))
    pace = SleepingPace()
    communication = ShardedCommunication(asynchronous=True, inputs=1, waiting=pace.waiting)
    communication.silent = True
    model = replay_of_groups(workload, plan, pace)
    assert plan.sharding is not None
    shard(model, plan, workload, mesh_of(plan.sharding, job.workers), communication)
    step = sharded_replay_step(pace, communication.finish, 0.0)
    own: list[float] = []
    for _ in range(ROUNDS):
        job.barrier()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step(model)
        job.barrier()
        own.append((time.perf_counter() - begin) / STEPS)
    return float(median(map(max, zip(*job.gather(own[1:]), strict=True))))
