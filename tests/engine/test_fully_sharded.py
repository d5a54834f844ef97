"""Fully sharded steps: order, bytes and times of what FSDP2 issues."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Block, Bucket, Layer, Plan, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import lower
from osfmodel.entities.effects import Effects
from osfmodel.entities.sharding import ParameterGroup, Sharding, gathered_bytes, reduced_bytes
from tests.draws import seeds
from tests.engine.sharded_events import Sharded, ends_of

COPY_IN, COPY_OUT = Fraction(1, 900), Fraction(1, 700)


def prices(workers, gain=1, alone=False, **stated):
    """A pricing whose collectives take bytes / 50, / 40 and / 100 seconds; ``alone``: nothing of that on a link."""
    lines = {"all_gather": Fraction(1, 50), "reduce_scatter": Fraction(1, 40), "all_reduce": Fraction(1, 100)}
    costs = {kind: AffineCost(((Fraction(1), slope),)) for kind, slope in lines.items()}
    effects = Effects(copy_in=COPY_IN, copy_out=COPY_OUT)
    return Pricing(
        costs, workers, gain, effects, startups=costs if alone else {},
        parts=lambda ranks, apart: prices(ranks, gain, alone, **stated), **stated,
    )  # fmt: skip


def step_of(groups, root):
    """Workload, buckets and rules of some groups: (seconds of forward, of backward, elements, rules)."""
    rows = [(f"g{place}", *row) for place, row in enumerate(groups)]
    layers = [Layer(name, forward, backward, 4 * size) for name, forward, backward, size, _ in rows]
    buckets = [Bucket((Block(layer.name, 0, layer.gradient_bytes),)) for layer in layers]
    rules = [row[-1] for row in rows]
    if root is not None:
        forward, backward, size, one, head_forward, head_backward = root
        layers = [
            Layer("first", forward, backward, 4 * size), *layers, Layer("head", head_forward, head_backward, 4)
        ]  # fmt: skip
        buckets.append(Bucket((Block("first", 0, 4 * size), Block("head", 0, 4))))
        rules.append(one)
    return Workload("step", tuple(layers)), tuple(buckets), tuple(rules)


def fraction(source, most):
    return Fraction(source.randint(1, 12 * most), 12)


def drawn(source):
    """(groups, root) at random, the inner groups' and the root's own rules among them."""
    groups = []
    for place in range(source.randint(1, 7)):
        rules = ParameterGroup(
            reshard=source.random() < 0.7, reduced_last=place == 0 and source.random() < 0.5,
            needed_in_backward=source.random() < 0.9, forward_prefetch=source.choice((0, 0, 1, 2)),
            backward_prefetch=source.choice((0, 1, 1, 2, 3)),
        )  # fmt: skip
        groups.append((fraction(source, 3), fraction(source, 5), source.randint(1, 200), rules))
    if source.random() < 0.5:
        return groups, None
    rules = ParameterGroup(reshard=False, reduced_last=True, forward_prefetch=source.choice((0, 1)))
    root = (fraction(source, 2), fraction(source, 2), source.randint(1, 50), rules)
    return groups, (*root, fraction(source, 2), fraction(source, 2))


def sharded(forward, backward, layers, rules, plan, workers):
    """Seconds of a group, from its bytes."""
    ranks = plan.ranks(workers)
    gathered, reduced = gathered_bytes(plan, layers, ranks), reduced_bytes(plan, layers, ranks)
    return Sharded(
        forward, backward, 1 + Fraction(gathered, 50), 1 + Fraction(gathered, 50), 1 + Fraction(reduced, 40),
        1 + Fraction(reduced // ranks, 100) if plan.replicas > 1 else Fraction(0),
        COPY_IN * Fraction(gathered, ranks), COPY_OUT * gathered, COPY_IN * reduced,
        rules.reshard, rules.reduced_last, rules.forward_prefetch, rules.backward_prefetch, rules.needed_in_backward,
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(50, 1000))
def test_times_are_those_of_the_written_dependencies(seed):
    """In exact fractions, with every operation on streams of its own."""
    source = random.Random(seed)
    groups, root = drawn(source)
    workload, buckets, rules = step_of(groups, root)
    workers, replicas = source.choice(((2, 1), (4, 1), (4, 2), (6, 3), (8, 2)))
    dtypes = source.choice((("", ""), ("bfloat16", ""), ("bfloat16", "float32")))
    sharding = Sharding(rules, replicas, *dtypes, source.randint(1, 3), source.random() < 0.4)
    plan = Plan("step", buckets, strategy="fully-sharded", sharding=sharding)
    pricing = prices(workers, alone=True)
    found = run(lower(workload, plan, pricing), pricing)
    own = {layer.name: layer for layer in workload.layers}
    every = [
        sharded(forward, backward, [own[f"g{place}"]], rule, sharding, workers)
        for place, (forward, backward, _, rule) in enumerate(groups)
    ]
    last = None
    if root is not None:
        both = sharded(root[0], root[1], [own["first"], own["head"]], root[3], sharding, workers)
        last = (both, root[4], root[5])
    assert found.finish == max(ends_of(every, last, sharding.reduce_inputs, sharding.separate).values())


@pytest.mark.parametrize(
    ("ahead", "asynchronous", "time"),
    [
        (0, False, 2 * 8 + 2 * 1 + 2 * 2 + 2 * 12),
        (1, False, 2 * 8 + 2 * 1 + 2 * 2 + 2 * 12),
        (0, True, 8 + 1 + 8 + 1 + 2 + 2 * 12),  # the first reduce-scatter beside the last backward
        (1, True, 8 + 8 + 1 + 2 + 2 * 12),  # also the second all-gather beside the first forward
    ],
)
def test_collectives_in_the_background_are_launched_once_the_host_gets_there(ahead, asynchronous, time):
    """Two groups over a library that blocks otherwise: forward 1, backward 2, all-gather 8, reduce-scatter 12."""
    assert two_groups(ahead, asynchronous) == time


def two_groups(*given, **named):
    return timeline_of_two(*given, **named).iteration_time


def timeline_of_two(ahead, asynchronous, effects=Effects(), replayed=False, inputs=1):
    workload = Workload("two", tuple(Layer(name, 1, 2, 4) for name in "ab"))
    buckets = tuple(Bucket((Block(name, 0, 4),)) for name in "ab")
    groups = (ParameterGroup(("a",), False, forward_prefetch=ahead), ParameterGroup(("b",), False))
    rules = Sharding(groups, asynchronous=asynchronous, reduce_inputs=inputs)
    per_byte = {"all_gather": 0.5, "reduce_scatter": 0.75}
    costs = {kind: AffineCost(((0.0, slope),)) for kind, slope in per_byte.items()}
    pricing = Pricing(costs, 4, effects=effects, blocking=True, replayed=replayed)
    program = lower(workload, Plan("two", buckets, strategy="fully-sharded", sharding=rules), pricing)
    return run(program, pricing).timeline(workload.compute_time)


@pytest.mark.parametrize(
    ("ahead", "asynchronous", "replayed", "time"),
    [
        (1, False, False, 2 * 8 + 2 * 1 + 2 * 2 + 2 * 12 + 4 * 4),  # one after the other
        (1, False, True, 2 + 8 + 4 + 8 + 2 + 4 + 12 + 4 + 12),  # computation is shorter, and passes beside it
        (1, True, False, 2 + 8 + 4 + 8 + 2 + 1 + 2 + 4 + 12 + 4 + 12),  # so does the first forward beside a gathering
        (0, True, True, 2 + 8 + 4 + 8 + 1 + 2 + 4 + 12 + 4 + 12),  # gradients to reduce are there after a backward
        (1, True, True, 2 + 8 + 4 + 8 + 1 + 2 + 4 + 12 + 4 + 12),
    ],
)
def test_the_host_works_for_each_collective_before_it_launches_the_next(ahead, asynchronous, replayed, time):
    """The same groups; 1 second for a collective, 2 for its tensor and 1 for its 16 bytes, so 4 for each of four."""
    effects = Effects(group_time=1, member_time=2, group_copy=1 / 16)
    assert two_groups(ahead, asynchronous, effects, replayed) == time


@pytest.mark.parametrize("stall", [0, 0.5, 1])
def test_where_no_core_is_free_collectives_in_the_background_stand_still_while_the_host_works(stall):
    """As above; the host's work of 4 for the second reduce-scatter falls into the 12 of the first."""
    effects = Effects(group_time=1, member_time=2, group_copy=1 / 16, group_stall=stall)
    assert two_groups(0, True, effects, True, inputs=2) == 2 + 8 + 4 + 8 + 1 + 2 + 4 + 12 + 4 * stall + 12
    assert two_groups(0, False, effects, True) == two_groups(0, False, replace(effects, group_stall=0), True)
    assert timeline_of_two(0, True, effects, True).communication_time == 2 * 8 + 2 * 12
