"""Steps of FSDP1: times from written dependencies, bytes, and memory."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import lower
from osfmodel.solve.bounds import plan_bound
from osfmodel.targets import fsdp1
from tests.draws import seeds
from tests.engine.flat_events import Flat, ends_of
from tests.engine.test_fully_sharded import COPY_IN, prices

ELEMENT = {"": 4, "float32": 4, "bfloat16": 2}


def fraction(source, most):
    return Fraction(source.randint(1, 12 * most), 12)


def drawn(source):
    """Blocks of one layer each between an embedding and a head, which are the root's."""
    blocks = [
        Layer(f"blocks.{place}.weight", fraction(source, 3), fraction(source, 5), 4 * source.randint(1, 200))
        for place in range(source.randint(2, 7))
    ]
    ends = [
        Layer(name, fraction(source, 2), fraction(source, 2), 4 * source.randint(1, 50)) for name in ("in.w", "out.w")
    ]
    return Workload("step", (ends[0], *blocks, ends[1]), update_time=fraction(source, 2))


def flat(layers, rules, ranks, freed):
    elements = sum(layer.gradient_bytes // 4 for layer in layers)
    padded = next(size for size in range(elements, elements + ranks) if size % ranks == 0)
    gathered, reduced = padded * ELEMENT[rules.gather_dtype], padded * ELEMENT[rules.reduce_dtype or rules.gather_dtype]
    between = 1 + Fraction(reduced // ranks, 100) if rules.replicas > 1 else Fraction(0)
    return Flat(
        layers[0].forward_time, layers[0].backward_time, 1 + Fraction(gathered, 50), COPY_IN * reduced,
        1 + Fraction(reduced, 40), between, freed,
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(50, 600))
def test_times_are_those_of_the_written_dependencies(seed):
    """In exact fractions, for each sharding strategy and prefetch, with and without the limit."""
    source = random.Random(seed)
    workload, reshard = drawn(source), source.random() < 0.7
    backward, forward = source.choice((fsdp1.PRE, fsdp1.POST, fsdp1.NEVER)), source.random() < 0.4
    workers, replicas = source.choice(((2, 1), (3, 1), (4, 2), (8, 2)))
    dtypes = source.choice((("", ""), ("bfloat16", ""), ("bfloat16", "float32")))
    limit = source.random() < 0.7
    knobs = fsdp1.FlatKnobs(None, reshard, backward, forward, limit, False, replicas, *dtypes)
    plan = fsdp1.to_plan(knobs, workload, Pricing.free(workers))
    ranks = workers // replicas
    first, *blocks, last = workload.layers
    groups = [flat([layer], plan.sharding, ranks, reshard) for layer in blocks]
    root = flat([first, last], plan.sharding, ranks, False)
    word = {fsdp1.PRE: "pre", fsdp1.POST: "post", fsdp1.NEVER: ""}[backward]
    ends = ends_of(groups, root, (last.forward_time, last.backward_time), forward, word, limit)
    pricing = prices(workers, alone=True)
    found = run(lower(workload, plan, pricing), pricing)
    assert found.finish == max(ends.values()) + workload.update_time / ranks
    assert plan_bound(workload, plan, pricing) <= found.finish * (1 + 1e-9)


def test_a_flat_parameter_is_padded_once():
    """Layers of 5, 7 and 9 elements on 4 ranks make 24; aligned to 4 elements, the last begins at 16: 28."""
    layers = tuple(
        Layer(f"blocks.{i // 3}.{'abc'[i % 3]}", 1, 1, 4 * size) for i, size in enumerate((5, 7, 9, 5, 7, 9))
    )
    workload = Workload("padded", layers)

    def sizes(**knobs):
        plan = fsdp1.to_plan(fsdp1.FlatKnobs(**knobs), workload, Pricing.free(4))
        return {one.size for one in lower(workload, plan, Pricing.free(4)).operations if one.size}

    assert sizes() == {4 * 24}
    assert sizes(aligned=True) == {4 * 28}
    assert sizes(gather_dtype="bfloat16", reduce_dtype="float32") == {2 * 24, 4 * 24}


def test_blocks_are_whole_from_their_gather_until_they_are_freed():
    """Four blocks of 400 bytes on 2 ranks; one is gathered ahead in backward, and all stay under SHARD_GRAD_OP."""
    layers = tuple(Layer(f"blocks.{place}.weight", 1.0, 2.0, 400, peak_bytes=0) for place in range(4))
    workload = Workload("four", layers, state_bytes=800)

    def gathered(**knobs):
        plan = fsdp1.to_plan(fsdp1.FlatKnobs(**knobs), workload, Pricing.free(2))
        timeline = predict_timeline(workload, plan, prices(2))
        levels = memory_of(workload, plan, timeline, 2).levels
        assert {(one.held["weights"], one.held["optimizer state"]) for one in levels} == {(800, 400)}
        return {one.during: one.held.get("unsharded groups", 0) for one in levels}

    found = gathered()
    assert [found[f"forward blocks.{place}.weight"] for place in range(4)] == [400] * 4
    assert [found[f"backward blocks.{place}.weight"] for place in (3, 2, 1, 0)] == [800, 800, 800, 400]
    found = gathered(reshard=False)
    assert [found[f"forward blocks.{place}.weight"] for place in range(4)] == [400, 800, 1200, 1600]
    found = gathered(backward_prefetch=fsdp1.NEVER)
    assert {found[f"backward blocks.{place}.weight"] for place in range(4)} == {400}


def test_settings_come_back_from_their_plan():
    workload = drawn(random.Random(1))
    for knobs in (
        fsdp1.FlatKnobs(),
        fsdp1.FlatKnobs(("blocks.0",), False, fsdp1.POST, True, False, True, 2, "bfloat16", "float32"),
        replace(fsdp1.FlatKnobs(), backward_prefetch=fsdp1.NEVER),
    ):
        plan = fsdp1.to_plan(knobs, workload, Pricing.free(4))
        assert fsdp1.exact(plan, workload) == knobs
