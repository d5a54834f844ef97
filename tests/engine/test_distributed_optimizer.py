"""Steps with Megatron-Core's distributed optimizer: times, bytes and memory."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Block, Bucket, Layer, Plan, PlanError
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import lower
from osfmodel.engine.strategies.distributed_optimizer import padded_elements
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.solve.bounds import objective_bound, plan_bound
from tests.draws import seeds
from tests.engine.gathering_events import (
    BUCKETS,
    GATHER,
    SCATTER,
    STEP,
    Step,
    distributed_end,
    drawn_buckets,
    drawn_workload,
    members,
    prices,
)

PLAN = Plan("step", BUCKETS, strategy="distributed-optimizer")
TWO = (ParameterGroup(), ParameterGroup())


def elements_of(workload, bucket, ranks):
    """Elements of a bucket, counted one by one: 64 to a line of parameters, whole units of the ranks and 128."""
    sizes = {layer.name: layer.elements for layer in workload.layers}
    filled = 64 * sum(len(range(0, sizes[block.layer], 64)) for block in bucket.blocks)
    while filled % ranks or filled % 128:
        filled += 64
    return filled


@pytest.mark.parametrize("seed", seeds(50, 600))
def test_times_are_those_of_the_written_dependencies(seed):
    source = random.Random(seed)
    workload = drawn_workload(source, source.choice(("float32", "bfloat16")))
    buckets, workers = drawn_buckets(source, workload, cuts=False), source.choice((2, 3, 4, 6, 8))
    own = 4 if workload.layers[0].dtype == "float32" else 2
    gather, reduce, sizes = source.choice(
        (("", "", (own, own)), ("bfloat16", "", (2, 2)), ("bfloat16", "float32", (2, 4)))
    )
    batches = source.choice((1, 1, 2, 3))
    sharding = Sharding(tuple(ParameterGroup() for _ in buckets), 1, gather, reduce, micro_batches=batches)
    plan = Plan("step", buckets, strategy="distributed-optimizer", sharding=sharding)
    if not gather and batches == 1:
        plan = replace(plan, sharding=None)
    elements = [elements_of(workload, bucket, workers) for bucket in buckets]
    step = Step(
        [layer.forward_time for layer in workload.layers], [layer.backward_time for layer in workload.layers],
        members(workload, buckets), [1 + GATHER * size * sizes[0] for size in elements],
        [1 + SCATTER * size * sizes[1] for size in elements], [], workload.update_time / workers, batches,
    )  # fmt: skip
    found = run(lower(workload, plan, prices(workers)), prices(workers)).finish
    assert isinstance(found, Fraction)
    assert found == distributed_end(step)


@pytest.mark.parametrize("seed", seeds(33, 100))
def test_no_step_beats_the_bound_of_its_plan(seed):
    """Each rank updates a shard, so that the bound has no more than that of the update."""
    source = random.Random(seed)
    workload = drawn_workload(source, "float32")
    workload = replace(workload, update_time=source.choice((1, 100)) * workload.update_time)
    plan = Plan("step", drawn_buckets(source, workload, cuts=False), strategy="distributed-optimizer")
    bound = plan_bound(workload, plan, prices(4))
    assert bound >= workload.forward_time + workload.backward_time
    assert bound <= run(lower(workload, plan, prices(4)), prices(4)).finish
    assert objective_bound(workload, prices(4), plan.objective) <= bound


@pytest.mark.parametrize(
    ("sizes", "ranks", "elements"),
    [
        ((100, 50), 4, 256),  # 100, from 128 to 178, to 256
        ((64, 64), 4, 128),
        ((64, 65), 4, 256),
        ((25,), 6, 384),  # the least common multiple of 6 and 128
        ((128, 128, 1), 8, 384),
        ((1, 1, 1), 3, 384),
        ((1, 1, 1), 2, 256),  # from 0, 64 and 128
        ((1000,), 256, 1024),
    ],
)
def test_parameters_begin_at_64_elements_and_buckets_end_at_ranks_and_128(sizes, ranks, elements):
    layers = [Layer(f"l{place}", 1, 1, 4 * size) for place, size in enumerate(sizes)]
    assert padded_elements(layers, ranks) == elements


def test_gathers_and_reduces_are_of_their_own_types_in_the_order_of_forward_and_of_backward():
    sharding = Sharding(TWO, 1, "bfloat16", "float32")
    program = lower(STEP, replace(PLAN, sharding=sharding), prices(4))
    sends = [(one.kind, one.bucket, one.size) for one in program.operations if one.stream == "channel"]
    assert sends == [
        ("all_gather", 1, 128 * 2),
        ("all_gather", 0, 256 * 2),
        ("reduce_scatter", 0, 256 * 4),
        ("reduce_scatter", 1, 128 * 4),
    ]


def held(plan):
    """Bytes by owner at the update of a step on 4 ranks."""
    levels = memory_of(STEP, plan, predict_timeline(STEP, plan, prices(4)), 4).levels
    return next(level.held for level in levels if level.during == "update")


def test_weights_and_gradients_are_whole_and_the_state_is_a_shard():
    found = held(PLAN)
    assert (found["weights"], found["buckets"]) == (384 * 4, 384 * 4)
    assert found["optimizer state"] == 176  # of 701 bytes, rounded up
    assert found["update scratch"] == 13
    assert "gradients" not in found


def test_weights_in_another_type_have_a_shard_in_their_own():
    found = held(replace(PLAN, sharding=Sharding(TWO, 1, "bfloat16", "float32")))
    assert (found["weights"], found["buckets"]) == (384 * 2 + 384 * 4 // 4, 384 * 4)
    found = held(replace(PLAN, sharding=Sharding(TWO, 1, "float32", "bfloat16")))
    assert (found["weights"], found["buckets"]) == (384 * 4, 384 * 2)


def test_plans_that_it_does_not_run_are_refused():
    cut = (Bucket((Block("c", 0, 200),)), Bucket((Block("c", 200, 200), Block("b", 0, 200), Block("a", 0, 100))))
    for change, words in (
        ({"buckets": cut}, "cuts tensors"),
        ({"forward_overlap": True}, "does not go with the next forward"),
        ({"credit": 300}, "does not go with sending by priority"),
        ({"release": True}, "does not go with gradients released"),
        ({"sharding": Sharding(TWO, 2)}, "replicas: the distributed optimizer has none"),
    ):
        with pytest.raises(PlanError, match=words):
            lower(STEP, replace(PLAN, **change), prices(4))
