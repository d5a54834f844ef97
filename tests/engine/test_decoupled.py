"""Decoupled all-reduces (DeAR): times, bytes and memory."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Block, Bucket, Plan, PlanError
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import lower
from osfmodel.engine.strategies.decoupled import padded_bytes
from tests.draws import seeds
from tests.engine.gathering_events import (
    BUCKETS,
    COPY_IN,
    COPY_OUT,
    GATHER,
    SCATTER,
    STEP,
    Step,
    decoupled_end,
    drawn_buckets,
    drawn_workload,
    members,
    prices,
)

PLAN = Plan("step", BUCKETS, forward_overlap=True, strategy="decoupled")


@pytest.mark.parametrize("seed", seeds(50, 600))
def test_times_are_those_of_the_written_dependencies(seed):
    source = random.Random(seed)
    workload = drawn_workload(source, source.choice(("float32", "bfloat16")))
    buckets, workers = drawn_buckets(source, workload, cuts=True), source.choice((2, 3, 4, 6, 8))
    plan = Plan("step", buckets, forward_overlap=True, strategy="decoupled")
    element = 4 if workload.layers[0].dtype == "float32" else 2
    sizes = [bucket.size + element * (workers - bucket.size // element % workers) for bucket in buckets]
    per_byte = Fraction(workload.update_time) / workload.gradient_bytes + COPY_OUT
    step = Step(
        [layer.forward_time for layer in workload.layers],
        [layer.backward_time + COPY_IN * layer.gradient_bytes for layer in workload.layers],
        members(workload, buckets), [1 + GATHER * size for size in sizes], [1 + SCATTER * size for size in sizes],
        [per_byte * bucket.size for bucket in buckets],
    )  # fmt: skip
    found = run(lower(workload, plan, prices(workers)), prices(workers)).finish
    assert isinstance(found, Fraction)
    assert found == decoupled_end(step)


@pytest.mark.parametrize(
    ("elements", "ranks", "padded"), [(25, 4, 28), (24, 4, 28), (150, 4, 152), (3, 4, 4), (4, 4, 8), (7, 1, 8)]
)
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_buckets_are_padded_by_an_element_at_least(elements, ranks, padded, dtype, size):
    assert padded_bytes(Bucket((Block("a", 0, elements * size),)), dtype, ranks) == padded * size


def test_gradients_are_reduced_in_backward_and_gathered_in_the_order_of_forward():
    program = lower(STEP, PLAN, prices(4))
    sends = [(one.kind, one.bucket, one.size) for one in program.operations if one.stream == "channel"]
    assert sends == [
        ("reduce_scatter", 0, 152 * 4),
        ("reduce_scatter", 1, 28 * 4),
        ("all_gather", 1, 28 * 4),
        ("all_gather", 0, 152 * 4),
    ]
    updates = [one for one in program.operations if one.kind == "update"]
    assert [one.layers for one in updates] == [(), ("a",), ("c", "b")]


def test_the_state_is_whole_and_buffers_are_padded_with_a_shard_of_each():
    levels = memory_of(STEP, PLAN, predict_timeline(STEP, PLAN, prices(4)), 4).levels
    for level in levels:
        assert level.held["weights"] == 700
        assert level.held["optimizer state"] == 701
        assert level.held["buckets"] == (152 + 28) * 4 + (152 + 28)


def test_plans_that_it_does_not_run_are_refused():
    for change, words in (
        ({"forward_overlap": False}, "has no forward_overlap"),
        ({"credit": 300}, "does not go with sending by priority"),
    ):
        with pytest.raises(PlanError, match=words):
            lower(STEP, replace(PLAN, **change), prices(4))
