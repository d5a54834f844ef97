"""One operation for several layers, and streams followed in order: exactly as layer by layer, by events."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Layer, Workload, load_cluster, pricing_of
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import simulate
from osfmodel.engine.memory import memory_of
from osfmodel.engine.program import Operation, Program
from osfmodel.engine.run import run_in_order
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import lower, strategy_of
from osfmodel.engine.works import timed
from osfmodel.entities.effects import Effects
from osfmodel.entities.executors import KEEPERS, RUNTIME
from osfmodel.entities.modules import in_micro_batches, wrapped
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.sharding import EACH, LAST, LAST_KEPT, SHARDS_EACH, ParameterGroup, Sharding
from osfmodel.solve.solution import Question
from osfmodel.targets.named_plans import named_plan
from tests.draws import examples, seeds

RANKS = 4


def step(rng: random.Random) -> tuple[Workload, Plan, Pricing]:
    """A random step of up to 4 blocks of up to 5 layers, some without parameters, in exact numbers."""

    def part(most: int) -> Fraction:
        return Fraction(rng.randint(0, most), rng.randint(1, 7))

    layers = [
        Layer(
            f"blocks.{block}.{place}.weight", part(9), part(9) + 1, 4 * rng.choice((0, rng.randint(1, 40))),
            activation_bytes=rng.randint(0, 50), peak_bytes=rng.randint(50, 900),
        )
        for block in range(rng.randint(1, 4))
        for place in range(rng.randint(1, 5))
    ]  # fmt: skip
    layers += [Layer("head.weight", part(9), part(9), 4 * rng.randint(1, 40), activation_bytes=9, peak_bytes=90)]
    workload = Workload("random", tuple(layers), 8, part(5), state_bytes=100, update_bytes=10, fixed_bytes=0)
    trained = sorted({layer.name[:8] for layer in layers[:-1] if layer.gradient_bytes})
    ends = sorted(rng.sample(range(len(trained) + 1), rng.randint(0, len(trained))))
    names = [trained[start:end] for start, end in zip([0, *ends], [*ends, len(trained)], strict=True)]
    ahead = {"forward_prefetch": rng.randint(0, 2), "backward_prefetch": rng.randint(0, 2)}
    groups = [ParameterGroup(tuple(some), reshard=rng.choice((True, False, 2)), **ahead) for some in names if some]
    rules = Sharding(
        (), rng.choice((1, 2)), reduce_inputs=rng.randint(1, 2), separate=rng.random() < 0.2,
        micro_batches=rng.randint(1, 3), reduce_each=rng.random() < 0.7, keep=rng.random() < 0.3,
    )  # fmt: skip
    effects = Effects(
        copy_in=Fraction(rng.randint(0, 1), 50), copy_out=Fraction(rng.randint(0, 1), 70),
        compute_slowdown=rng.choice((0, Fraction(1, 5))),
    )  # fmt: skip
    costs = dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), AffineCost(((part(4), Fraction(1, 9)),)))
    gain = Fraction(3, 2)
    pricing = Pricing(costs, RANKS, gain, effects, parts=lambda ranks, apart: Pricing(costs, ranks, gain))
    return workload, wrapped(workload, groups, rules), pricing


@pytest.mark.parametrize("seed", seeds(25, 150))
def test_merged_layers_and_streams_in_order_change_nothing(seed):
    workload, plan, pricing = step(random.Random(seed))
    program = lower(workload, plan, pricing)
    by_events = run(program, pricing)
    found = run_in_order(program, pricing)
    if found is not None:
        assert (found.starts, found.ends, found.finish) == (by_events.starts, by_events.ends, by_events.finish)
        assert found.begun == by_events.begun
        assert found.computed == by_events.computed
    apart = strategy_of(plan).apart(workload, plan, pricing)
    alone = run(apart, pricing)
    for one in [by_events] if found is None else [by_events, found]:
        assert one.apart() == (alone.starts, alone.ends)
        spans, layer_by_layer = one.timeline(1).spans, alone.timeline(1).spans
        assert sorted(spans, key=repr) == sorted(layer_by_layer, key=repr)
    assert len(program.operations) <= len(apart.operations)


def sent(rng: random.Random) -> tuple[Workload, Plan, Pricing]:
    """A random step with an all-reduce a bucket, whole or split, under random rules, in exact numbers."""
    workload, _, pricing = step(rng)
    names = list(zip(workload.gradients.names, workload.gradients.sizes, strict=True))
    blocks = [block for name, size in names for block in _pieces(name, size, rng)]
    ends = sorted({*rng.sample(range(len(blocks)), rng.randint(0, len(blocks) - 1)), len(blocks)} - {0})
    buckets = [tuple(blocks[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    clocked = rng.random() < 0.3
    split = rng.random() < 0.4
    plan = Plan(
        workload.name,
        tuple(Bucket(bucket, Fraction(rng.randint(0, 40), 3) if clocked else 0) for bucket in buckets),
        channels=rng.randint(1, 3),
        forward_overlap=split or rng.random() < 0.4,
        strategy="split" if split else "replicated",
        credit=rng.randint(1, 200) if not split and not clocked and rng.random() < 0.3 else None,
    )
    hooks = replace(pricing.effects, hook_time=Fraction(rng.randint(0, 2), 9))
    return workload, plan, replace(pricing, effects=hooks)


def _pieces(name: str, size: int, rng: random.Random) -> list[Block]:
    cut = 4 * rng.randint(1, size // 4)
    return [Block(name, 0, cut), *([Block(name, cut, size - cut)] if size > cut else [])]


@pytest.mark.parametrize("seed", seeds(25, 150))
def test_layers_between_messages_are_merged_without_a_change(seed):
    workload, plan, pricing = sent(random.Random(seed))
    merged, apart = lower(workload, plan, pricing), strategy_of(plan).apart(workload, plan, pricing)
    assert len(merged.operations) <= len(apart.operations)
    found, alone = run(merged, pricing), run(apart, pricing)
    assert (found.finish, found.apart()) == (alone.finish, (alone.starts, alone.ends))
    assert sorted(found.timeline(1).spans, key=repr) == sorted(alone.timeline(1).spans, key=repr)


@pytest.mark.parametrize("seed", seeds(25, 150))
def test_layers_between_reductions_of_zero_are_merged_without_a_change(seed):
    rng = random.Random(seed)
    workload, plan, pricing = sent(rng)
    form = {"micro_batches": rng.randint(1, 3), "asynchronous": rng.random() < 0.5}
    groups = (ParameterGroup(),) * len(plan.buckets)
    stage = rng.choice(("zero-1", "zero-1-owners", "zero-2"))
    plan = Plan(workload.name, plan.buckets, strategy=stage, sharding=Sharding(groups, **form))
    pricing = replace(pricing, blocking=rng.random() < 0.2)
    merged, apart = lower(workload, plan, pricing), strategy_of(plan).apart(workload, plan, pricing)
    assert len(merged.operations) <= len(apart.operations)
    found, alone = run(merged, pricing), run(apart, pricing)
    assert (found.finish, found.apart()) == (alone.finish, (alone.starts, alone.ends))
    assert sorted(found.timeline(1).spans, key=repr) == sorted(alone.timeline(1).spans, key=repr)
    slower = pricing.slower(Fraction(3, 2))
    if merged.works:
        again, fresh = (run(one, slower) for one in (timed(merged, workload, slower), lower(workload, plan, slower)))
        assert (again.finish, again.apart()) == (fresh.finish, fresh.apart())


NAMES = ("fsdp2", "fsdp2:keep", "hsdp", "fsdp1", "zero-1", "zero-2", "zero-3", "distributed-optimizer", "torchtitan")
"""Plans of all strategies that shard."""


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_micro_batches_that_repeat_are_as_simulated(seed):
    """Exact on random groups under each form; and under the rules of other strategies with real prices."""
    rng = random.Random(seed)
    workload, plan, pricing = step(rng)
    form = rng.choice((EACH, SHARDS_EACH, LAST, LAST_KEPT))
    plan = replace(plan, sharding=plan.sharding.accumulating(rng.randint(4, 9), form))
    assert simulate(workload, plan, pricing).iteration_time == run(lower(workload, plan, pricing), pricing).finish
    pricing = pricing_of(load_cluster(rng.choice(("v100-10gbe", "nccl:v100x8,25Gbps"))), 16)
    workload = workload.scaled(float(rng.uniform(1e-5, 1e-2)))
    question = Question(workload, pricing, named_plan(name := rng.choice(NAMES)).objective)
    plan = named_plan(name).solve(question).require()[0]
    plan = in_micro_batches(plan, count := rng.randint(4, 9), rng.choice((EACH, LAST)))
    found = simulate(workload, plan, pricing)
    loaded, prices = pricing.loaded(workload)
    whole = run(lower(loaded, plan, prices), prices)
    assert found.iteration_time == pytest.approx(whole.finish, rel=1e-12)
    assert max(span.end for span in found.spans) == pytest.approx(found.iteration_time, rel=1e-12)
    assert sum(span.kind == "forward" for span in found.spans) == count * len(workload.layers)
    slower = simulate(workload, plan, pricing.slower(2))
    assert simulate(workload, plan, pricing.slower(2), found).iteration_time == slower.iteration_time


def test_memory_is_that_of_layers_apart():
    for seed in range(examples(15)):
        workload, plan, pricing = step(random.Random(seed))
        timeline = simulate(workload, plan, pricing)
        holdings = strategy_of(plan).holdings
        apart = strategy_of(plan).apart(workload, plan, pricing)
        told = run(holdings(apart, workload, plan, RANKS, KEEPERS[RUNTIME.name]).program(), pricing).memory
        assert memory_of(workload, plan, timeline, RANKS) == told


def test_few_groups_make_few_operations():
    layers = tuple(Layer(f"blocks.{place // 38}.{place}.weight", 1, 2, 4) for place in range(760))
    workload = Workload("long", layers)
    groups = [ParameterGroup((f"blocks.{block}",)) for block in range(20)]
    plan = wrapped(workload, groups, Sharding(()))
    assert len(lower(workload, plan, Pricing.free(RANKS)).operations) < 10 * len(groups) + 10


def test_programs_that_need_events_are_left_to_the_simulator():
    """Two streams that share a link, and an operation that waits for one behind it."""
    pricing = Pricing.free(RANKS)
    both = [Operation("all_gather", stream, (), 0, 1) for stream in ("channel", "reduce channel")]
    assert run_in_order(Program(tuple(both)), pricing) is None
    assert run_in_order(Program(tuple(both[:1])), pricing).finish == 1
    assert run_in_order(Program((Operation("forward", "compute", ("a",), 1, waits=(1,)), both[0])), pricing) is None
