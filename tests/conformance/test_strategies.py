"""Every strategy of STRATEGIES: its programs end, send every byte, and tell time and memory together."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Block, Bucket, Layer, Plan, PlanError, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.program import COMPUTE, Operation, Program
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import STRATEGIES, lower, strategy_of
from osfmodel.entities.effects import Effects
from osfmodel.entities.executors import KEEPERS, RUNTIME
from osfmodel.entities.sharding import Fetching, ParameterGroup, Sharding

LAYERS = (
    Layer("a", Fraction(1), Fraction(2), 100, activation_bytes=1000, peak_bytes=1500),
    Layer("b", Fraction(1), Fraction(2), 200, activation_bytes=2000, peak_bytes=3600),
    Layer("c", Fraction(1), Fraction(2), 400, activation_bytes=3000, peak_bytes=6500),
)
STEP = Workload("step", LAYERS, 8, Fraction(1), state_bytes=700, update_bytes=50, fixed_bytes=7)
CUT = (Bucket((Block("c", 0, 200),)), Bucket((Block("c", 200, 200), Block("b", 0, 200), Block("a", 0, 100))))
WHOLE = (Bucket((Block("c", 0, 400), Block("b", 0, 200))), Bucket((Block("a", 0, 100),)))
LINE = AffineCost(((Fraction(1, 2), Fraction(1, 100)),))
EFFECTS = Effects(hook_time=Fraction(1, 10), copy_in=Fraction(1, 1000), compute_slowdown=Fraction(1, 5))
COSTS = dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), LINE)
PRICING = Pricing(COSTS, 4, Fraction(3, 2), EFFECTS, parts=lambda ranks, apart: Pricing(COSTS, ranks, Fraction(3, 2)))
KEPT, AHEAD = ParameterGroup(reshard=False), ParameterGroup(forward_prefetch=1, backward_prefetch=2)
RULES = {
    "replicated": [{}, {"channels": 2}, {"forward_overlap": True}, {"credit": 300}, {"release": True}],
    "split": [{}, {"forward_overlap": True}, {"channels": 2}],
    "fully-sharded": [
        {"sharding": Sharding((ParameterGroup(), ParameterGroup(reduced_last=True)))},
        {
            "sharding": Sharding(
                (ParameterGroup(reshard=2), ParameterGroup(reshard=False)), reduce_inputs=2, separate=True
            )
        },
    ],
    "hybrid-sharded": [
        {
            "sharding": Sharding(
                (ParameterGroup(forward_prefetch=1, backward_prefetch=2), ParameterGroup()), 2, "bfloat16", "float32"
            )
        },
    ],
    "flat-sharded": [
        {"sharding": Sharding((ParameterGroup(), ParameterGroup(reshard=False, reduced_last=True)))},
        {"sharding": Sharding((AHEAD, AHEAD), 2, "bfloat16", "float32", late_prefetch=True, aligned=True)},
        {"sharding": Sharding((KEPT, AHEAD), unlimited=True)},
    ],
    "zero-1": [
        {},
        {"sharding": Sharding((KEPT, KEPT), asynchronous=True, micro_batches=2)},
    ],
    "zero-1-owners": [
        {},
        {"sharding": Sharding((KEPT, KEPT), 2, asynchronous=True)},
    ],
    "zero-2": [
        {},
        {"sharding": Sharding((KEPT, KEPT), 1, "bfloat16", "float32", asynchronous=True)},
        {"sharding": Sharding((KEPT, KEPT), micro_batches=3)},
    ],
    "zero-3": [
        {"sharding": Sharding((KEPT, KEPT), fetching=Fetching(persistent=25, prefetch=60), asynchronous=True)},
        {
            "sharding": Sharding(
                (KEPT, KEPT), 1, "bfloat16", "float32", micro_batches=2, fetching=Fetching(0, 0, reuse=0)
            )
        },
    ],
    "distributed-optimizer": [
        {"buckets": WHOLE},
        {"sharding": Sharding((ParameterGroup(), ParameterGroup()), 1, "bfloat16", "float32", micro_batches=2)},
    ],
    "decoupled": [{"forward_overlap": True}, {"forward_overlap": True, "channels": 2}],
}
"""Further rules of plans that each strategy runs; plans without any where a strategy has no line here."""
PADDED = ("distributed-optimizer", "decoupled")
"""Strategies that send more than gradients also without a sharding in the plan."""

CASES = [
    pytest.param(
        name,
        Plan("step", **{"buckets": WHOLE if "sharding" in rules else CUT, "strategy": name, **rules}),
        id=f"{name} {'+'.join(rules)} {place}",
    )
    for name in STRATEGIES
    for place, rules in enumerate(RULES.get(name, [{}]))
]


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_every_operation_waits_for_earlier_ones_and_ends(name, plan):
    program = lower(STEP, plan, PRICING)
    assert program.operations == STRATEGIES[name].lower(STEP, plan, PRICING).operations
    assert all(before < number for number, one in enumerate(program.operations) for before in one.waits)
    found = run(program, PRICING)
    for number, operation in enumerate(program.operations):
        assert found.ends[number] >= found.starts[number] + operation.startup
        assert all(found.starts[number] >= found.ends[before] for before in operation.waits)
    assert found.finish == max(found.ends)
    assert isinstance(found.finish, Fraction)


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_every_byte_is_sent(name, plan):
    """A bucket of sharded parameters is padded, its parts are all-reduced, and it may be sent in other types.

    Collectives of no bucket carry all parameters, padded; stage 3 of ZeRO those of a module, and may do so twice.
    """
    sends = [one for one in lower(STEP, plan, PRICING).operations if one.stream != COMPUTE and one.transfer]
    whole = [one for one in sends if one.bucket < 0]
    if whole:
        carried = sorted(name for one in whole for name in one.layers)
        assert sorted(set(carried) if name == "zero-3" else carried) == sorted(STEP.gradients.names)
        assert STEP.gradient_bytes <= sum(one.size for one in whole) * (2 if plan.sharding else 1)
    sends = [one for one in sends if one.bucket >= 0]
    for kind in {one.kind for one in sends}:
        assert {one.bucket for one in sends if one.kind == kind} == set(range(len(plan.buckets)))
        size = sum(one.size for one in sends if one.kind == kind)
        assert size > STEP.gradient_bytes if name in PADDED else plan.sharding or size == STEP.gradient_bytes


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_time_and_memory_come_from_one_run(name, plan):
    lowered = (strategy_of(plan).apart or lower)(STEP, plan, PRICING)
    program = strategy_of(plan).holdings(lowered, STEP, plan, 4, KEEPERS[RUNTIME.name]).program()
    found = run(program, PRICING)
    timeline = predict_timeline(STEP, plan, PRICING)
    assert found.timeline(STEP.compute_time).iteration_time == timeline.iteration_time
    told = memory_of(STEP, plan, timeline, 4)
    assert [(one.during, one.held) for one in found.memory.levels] == [(one.during, one.held) for one in told.levels]
    assert all(size >= 0 for level in told.levels for size in level.held.values())


def test_a_program_that_comes_to_a_stop_is_refused():
    """An operation that waits for one behind it on its own stream."""
    stuck = Program((Operation("forward", COMPUTE, ("a",), 1, waits=(1,)), Operation("backward", COMPUTE, ("a",), 1)))
    with pytest.raises(PlanError, match="operation 0 of the program, forward, waits for what never ends"):
        run(stuck, PRICING)
    assert run(replace(stuck, operations=stuck.operations[1:]), PRICING).finish == 1
