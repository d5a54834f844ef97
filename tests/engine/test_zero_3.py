"""Steps of ZeRO stage 3: times and messages from written dependencies, memory, and plans that are refused."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Block, Bucket, Layer, Plan, PlanError, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import lower
from osfmodel.engine.strategies.deepspeed import used_modules
from osfmodel.entities.effects import Effects
from osfmodel.entities.sharding import Fetching, ParameterGroup, Sharding
from osfmodel.solve.bounds import plan_bound
from tests.draws import seeds
from tests.engine.fetching_events import Fetched, Steps
from tests.engine.test_zero import runs_by_dtype

COPY_IN, COPY_OUT = Fraction(1, 900), Fraction(1, 700)
GATHER, SCATTER = Fraction(1, 50), Fraction(1, 40)
WIDTHS = {"float32": 4, "bfloat16": 2}


def prices(workers, blocking=False):
    """Prices of 1 second and some for each byte, nothing of that on a link, and of copies."""
    slopes = {"all_gather": GATHER, "reduce_scatter": SCATTER}
    costs = {kind: AffineCost(((Fraction(1), slope),)) for kind, slope in slopes.items()}
    effects = Effects(copy_in=COPY_IN, copy_out=COPY_OUT)
    return Pricing(costs, workers, effects=effects, startups=costs, blocking=blocking)


def fraction(source, most):
    return Fraction(source.randint(1, 12 * most), 12)


def drawn(source):
    """Modules of one layer each, two of which may share a list; the parameters in forward order, by dtype."""
    dtypes = source.choice((("float32",), ("float32",), ("float32", "bfloat16")))
    return [
        Layer(f"m{place}.weight", fraction(source, 4), fraction(source, 6),
              WIDTHS[dtype] * source.randint(1, 90) if source.random() < 0.9 else 0, dtype)
        for place in range(source.randint(1, 10)) for dtype in [source.choice(dtypes)]
    ] + [Layer("head", fraction(source, 3), fraction(source, 5), 4)]  # fmt: skip


def runs_of(source, layers):
    """Buckets of gradients in ready order, each dtype by itself, in the order in which they are full."""
    runs = runs_by_dtype(source, layers, WIDTHS)
    place = {layer.name: number for number, layer in enumerate(layers)}

    def full(run):
        behind = [one for one in runs if one[0].dtype == run[0].dtype and place[one[0].name] < place[run[0].name]]
        return max((place[one[0].name] for one in behind), default=-1)

    return sorted(runs, key=full, reverse=True)


def drawn_limits(source):
    return Fetching(
        source.choice((0, 20, 60, 10**6)), source.choice((0, 0, 20, 50)), source.choice((30, 10**6)),
        source.choice((50, 150, 10**6)), source.choice((0, 40, 120, 10**6)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(50, 800))
def test_times_and_messages_are_those_of_the_written_dependencies(seed):
    source = random.Random(seed)
    layers, limits = drawn(source), drawn_limits(source)
    workload, runs = Workload("step", tuple(layers), update_time=fraction(source, 4)), runs_of(source, layers)
    workers, overlap, blocking = source.choice((1, 2, 3, 8)), source.random() < 0.7, source.random() < 0.2
    batches = source.choice((1, 1, 2))
    buckets = tuple(Bucket(tuple(Block(one.name, 0, one.gradient_bytes) for one in run)) for run in runs)
    rules = Sharding(
        (ParameterGroup(),) * len(buckets), asynchronous=overlap, micro_batches=batches, fetching=limits
    )  # fmt: skip
    plan = Plan("step", buckets, strategy="zero-3", sharding=rules)
    modules = [
        ([(one.name, one.gradient_bytes // WIDTHS[one.dtype], WIDTHS[one.dtype])] if one.gradient_bytes else [],
         one.forward_time, one.backward_time)
        for one in layers
    ]  # fmt: skip
    expected = Steps(
        Fetched(
            modules, limits, workers, overlap, blocking, batches, workload.update_time / workers,
            [[one.name for one in run] for run in runs], lambda size: 1 + GATHER * size,
            lambda size: 1 + SCATTER * size, COPY_IN, COPY_OUT,
        )
    )  # fmt: skip
    pricing = prices(workers, blocking)
    program = lower(workload, plan, pricing)
    sent = [(one.kind, one.size) for one in program.operations if one.stream == "channel"]
    assert sent == expected.sent
    found = run(program, pricing).finish
    assert isinstance(found, Fraction)
    assert found == max(expected.ends.values())
    assert plan_bound(workload, plan, pricing) <= found * (1 + 1e-9)


def test_modules_are_those_that_are_called():
    """The model, blocks and their parts; not lists, whose parts are numbered."""
    names = ("embed.weight", "blocks.0.norm.weight", "blocks.0.norm.bias", "blocks.0.up.weight", "blocks.1", "head")
    modules = used_modules(Workload("called", tuple(Layer(name, 1, 1, 4) for name in names)))
    assert [(one.first, one.last, len(one.layers)) for one in modules] == [
        (0, 5, 0), (0, 0, 1), (1, 3, 0), (1, 2, 2), (3, 3, 1), (4, 4, 1), (5, 5, 1)
    ]  # fmt: skip


def three(limits, **rules):
    """Memory of a step of three modules of 100, 200 and 400 bytes of float32, 2 ranks, by moment."""
    layers = tuple(
        Layer(name, Fraction(1), Fraction(2), size, peak_bytes=0)
        for name, size in (("a", 100), ("b", 200), ("c", 400))
    )  # fmt: skip
    workload = Workload("three", layers, update_time=Fraction(1), state_bytes=1400, update_bytes=0)
    buckets = (Bucket((Block("c", 0, 400),)), Bucket((Block("b", 0, 200), Block("a", 0, 100))))
    sharding = Sharding((ParameterGroup(),) * 2, asynchronous=True, fetching=limits, **rules)
    plan = Plan("three", buckets, strategy="zero-3", sharding=sharding)
    timeline = predict_timeline(workload, plan, replace(prices(2), effects=Effects()))
    return {one.during: one.held for one in memory_of(workload, plan, timeline, 2).levels}


def test_what_is_whole_is_fetched_ahead_and_freed_behind():
    """Without reuse each is whole, padded, from its fetch to the end of its use; persistent ones always are."""
    found = three(Fetching(prefetch=0, persistent=0, reuse=0))
    held = {during: one.get("unsharded groups", 0) for during, one in found.items()}
    assert [held[f"forward {name}"] for name in "abc"] == [104, 200, 400]
    assert [held[f"backward {name}"] for name in "cba"] == [400, 200, 104]
    found = three(Fetching(prefetch=1, persistent=0, reuse=0))
    assert found["forward a"]["unsharded groups"] == 104 + 200
    found = three(Fetching(persistent=50, reuse=0))
    assert found["update"]["unsharded groups"] == 104 + 200


def test_shards_and_buffers_stay():
    found = three(Fetching(prefetch=0, persistent=0, reuse=0), buffer=150)
    for held in found.values():
        assert (held["weights"], held["optimizer state"]) == (352, 700)  # 25 elements make two shards of 13
        assert held["buckets"] >= 600
    assert found["update"]["gradients"] == 352
    found = three(Fetching(persistent=0), gather_dtype="bfloat16", reduce_dtype="float32")
    assert found["update"]["weights"] == 352 // 2 + 352


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 2}, "excludes 2 channels"),
        ({"sharding": Sharding((ParameterGroup(),), 2)}, "several replicas"),
        ({"buckets": (Bucket((Block("a", 0, 4),)), Bucket((Block("a", 4, 4),)))}, "cuts tensors"),
    ],
)
def test_plans_beyond_stage_3_are_refused(change, message):
    workload = Workload("one", (Layer("a", 1, 1, 8),))
    plan = Plan("one", (Bucket((Block("a", 0, 8),)),), strategy="zero-3")
    with pytest.raises(PlanError, match=message):
        lower(workload, replace(plan, **change), prices(2))
