"""Sparse communication: closed forms against their algorithms, message by message, and break-even against a search."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.sparse_cost import Exchange, break_even, gathered_time
from osfmodel import Effects, Layer, Link, Workload, engine
from osfmodel.cost import AffineCost, TableCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.sparse import Sparsity, part_bytes, sparsely
from osfmodel.entities.compression import top_k
from osfmodel.entities.errors import DataError, PlanError
from osfmodel.entities.plan import contiguous_plan, one_by_one
from osfmodel.solve.bounds import plan_bound
from osfmodel.targets.named_plans import falling_back
from tests.draws import examples

LINK = Link(3e-5, 8e-10)


def rounds_of(steps, link):
    """Seconds of rounds of messages: in each every rank sends one at a time, and the slowest ends the round."""
    total = 0
    for messages in steps:
        senders = [sender for sender, _, _ in messages]
        assert len(set(senders)) == len(senders)
        total += max(link.latency + link.seconds_per_byte * size for _, _, size in messages)
    return total


def ring_all_reduce(workers, size):
    """2 (N - 1) steps; what has been added up where is checked on the way."""
    held = [[{rank} for _ in range(workers)] for rank in range(workers)]
    steps = []
    for step in range(2 * (workers - 1)):
        messages, moved = [], []
        for rank in range(workers):
            chunk = (rank - step) % workers if step < workers - 1 else (rank + 1 - (step - workers + 1)) % workers
            messages.append((rank, (rank + 1) % workers, size / workers))
            moved.append(((rank + 1) % workers, chunk, set(held[rank][chunk])))
        for target, chunk, parts in moved:
            held[target][chunk] |= parts
        steps.append(messages)
    assert all(parts == set(range(workers)) for rank in held for parts in rank)
    return steps


def doubling_all_gather(workers, part):
    """Bruck: in round k a rank sends all that it has, or what is missing, to the rank 2^k before it."""
    held = [[rank] for rank in range(workers)]
    steps, distance = [], 1
    while distance < workers:
        count = min(distance, workers - distance)
        steps.append([(rank, (rank - distance) % workers, count * part) for rank in range(workers)])
        held = [own + held[(rank + distance) % workers][:count] for rank, own in enumerate(held)]
        distance *= 2
    assert all(sorted(own) == list(range(workers)) for own in held)
    return steps


def merging_tree(workers, part):
    """gTop-k: pairs merge into as many entries; what the root has goes back the same way."""
    distance, up, merged = 1, [], {rank: {rank} for rank in range(workers)}
    while distance < workers:
        pairs = [(rank + distance, rank) for rank in range(0, workers, 2 * distance) if rank + distance < workers]
        up.append([(sender, target, part) for sender, target in pairs])
        for sender, target in pairs:
            merged[target] |= merged[sender]
        distance *= 2
    assert merged[0] == set(range(workers))
    return up + [[(target, sender, part) for sender, target, _ in step] for step in reversed(up)]


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8, 13, 16])
@pytest.mark.parametrize("density", [0.001, 0.1, 1.0])
def test_closed_forms_equal_their_messages(workers, density):
    size = 4_000_000
    exchange, part = Exchange(workers, LINK), part_bytes(size, density)
    assert exchange.dense(size) == pytest.approx(rounds_of(ring_all_reduce(workers, size), LINK))
    assert exchange.gathered(size, density) == pytest.approx(rounds_of(doubling_all_gather(workers, part), LINK))
    assert exchange.tree(size, density) == pytest.approx(rounds_of(merging_tree(workers, part), LINK))


def test_the_oracle_can_fail():
    """One round less, or entries without their places, and the messages disagree."""
    steps = doubling_all_gather(8, part_bytes(4000, 0.5))
    assert rounds_of(steps[1:], LINK) < Exchange(8, LINK).gathered(4000, 0.5)
    assert rounds_of(doubling_all_gather(8, 2000), LINK) < Exchange(8, LINK).gathered(4000, 0.5)


def test_limits():
    """As published: without start-up, break-even is 1 / N for a gather and (N - 1) / (2 N log2 N) for a tree."""
    wire = Link(0.0, 1e-9)
    for workers in (2, 4, 8, 16, 64):
        exchange = Exchange(workers, wire)
        assert exchange.gather_pays_below(1e6) == pytest.approx(1 / workers)
        assert exchange.tree_pays_below(1e6) == pytest.approx((workers - 1) / workers / (2 * math.log2(workers)))
        assert exchange.gathered(1e6, 1.0) == pytest.approx(workers * exchange.dense(1e6))  # all, and the places
    two = Exchange(2, LINK)
    assert two.gathered(8e6, 0.1) == pytest.approx(LINK.latency + 0.2 * 8e6 * LINK.seconds_per_byte)
    assert two.tree(8e6, 0.1) == pytest.approx(2 * two.gathered(8e6, 0.1))
    assert Exchange(8, LINK, element=2).growth == 3  # an index is as long for a half
    assert Exchange(8, Link(1e-3, 0.0)).gather_pays_below(1e6) == 1  # start-up alone: fewer rounds than a ring's


effects = st.builds(
    Effects,
    select=st.sampled_from([0.0, 1e-10, 3e-9]),
    select_sent=st.sampled_from([0.0, 1e-9]),
    select_time=st.sampled_from([0.0, 2e-5]),
    spread=st.sampled_from([0.0, 1e-11]),
    spread_received=st.sampled_from([0.0, 2e-9]),
    spread_time=st.sampled_from([0.0, 1e-5]),
)


@settings(max_examples=examples(30))
@given(
    st.integers(2, 128), st.floats(0, 1e-3), st.floats(1e-12, 1e-7), st.sampled_from([2, 4, 8]),
    st.floats(1e3, 1e9), effects,
)  # fmt: skip
def test_break_even_of_the_closed_forms(workers, latency, per_byte, element, size, effects):
    """Just below it sparse takes less, just above it more; 0 and 1 where that never or always holds."""
    exchange = Exchange(workers, Link(latency, per_byte), element)
    computed = (effects.select + effects.spread) * size + effects.select_time + effects.spread_time
    for time, found, arriving in (
        (exchange.gathered, exchange.gather_pays_below(size, effects), workers),
        (exchange.tree, exchange.tree_pays_below(size, effects), 1),
    ):
        received = (effects.spread_received * arriving + effects.select_sent) * exchange.growth * size

        def saves(density, time=time, received=received):
            return time(size, density) + computed + received * density < exchange.dense(size)

        assert 0 <= found <= 1
        if found > 0:
            assert saves(found * (1 - 1e-9))
        if found < 1:
            assert not saves(max(found, 1e-12) * (1 + 1e-9))


@st.composite
def priced(draw):
    if draw(st.booleans()):
        costs = [AffineCost(((draw(st.floats(0, 1e-3)), draw(st.floats(1e-11, 1e-8))),)) for _ in range(2)]
    else:
        sizes = (64, 1 << 10, 1 << 14, 1 << 18)
        costs = [TableCost(sizes, tuple(draw(st.floats(1e-5, 1e-2)) for _ in sizes), 1e-9) for _ in range(2)]
    found = dict(zip(("all_reduce", "all_gather"), costs, strict=True))
    return Pricing(found, workers=draw(st.sampled_from([2, 4, 16])), effects=draw(effects))


def sparse_time(pricing, size, count):
    """Seconds of ``count`` entries of a tensor: gathered, and all that is computed for it, term by term."""
    effects, sent = pricing.effects, count * (4 + 4)
    received = sent * pricing.workers
    chosen = effects.select_time + effects.select * size + effects.select_sent * sent
    spread = effects.spread_time + effects.spread * size + effects.spread_received * received
    return pricing.cost("all_gather")(received) + chosen + spread


@settings(max_examples=examples(30))
@given(priced(), st.integers(1, 12_000))
def test_break_even_at_measured_prices(pricing, size):
    """The greatest number of entries that takes no longer, whatever a table does: against trying all."""
    elements, dense = -(-size // 4), pricing.cost()(size)
    paying = [count for count in range(1, elements + 1) if sparse_time(pricing, size, count) <= dense]
    found = break_even(pricing, size)
    trusted = {top_k(elements, count / elements) for count in paying}
    assume(all(top_k(elements, count / elements) == count for count in range(1, elements + 1)) or not paying)
    assert (top_k(elements, found) if found else 0) == max(trusted, default=0)
    assert gathered_time(pricing, size, 1.0) == pytest.approx(sparse_time(pricing, size, elements), rel=1e-12)


def workload():
    layers = [Layer("a", 1e-3, 2e-3, 4_000_000), Layer("b", 1e-3, 2e-3, 400), Layer("c", 1e-3, 2e-3, 1_000_000)]
    return Workload("w", tuple(layers), update_time=1e-3)


def test_messages_of_a_bucket():
    """k = ceil(density n) entries of each tensor, each with a place of 4 bytes."""
    plan = sparsely(contiguous_plan(workload(), [1, 3]), 0.01)
    sparsity = Sparsity(workload(), Effects(), 4)
    assert [sparsity.sent_bytes(bucket) for bucket in plan.buckets] == [2500 * 8, (1 + 10_000) * 8]
    assert sparsity.gathered_bytes(plan.buckets[0]) == 4 * 2500 * 8
    assert part_bytes(400, 1.0, element=2) == 200 * 6
    assert part_bytes(3, 0.5) == 8  # less than an element is one
    with pytest.raises(PlanError, match="density is 0"):
        sparsely(plan, 0)
    with pytest.raises(PlanError, match=r"density is 1\.5"):
        gathered_time(Pricing.of(AffineCost(((0, 1),))), 8, 1.5)
    with pytest.raises(DataError, match="2 or more"):
        Exchange(1, LINK)


def test_work_of_a_sparse_bucket_depends_on_the_bytes_sent():
    """2,500 of 250,000 entries of 4 bytes, each sent with a place of 4."""
    (bucket,) = sparsely(contiguous_plan(workload(), [1, 3]), 0.01).buckets[:1]
    assert bucket.size == 1_000_000
    assert Sparsity(workload(), Effects(select_sent=1.0), 4).work(bucket) == 2500 * 8
    assert Sparsity(workload(), Effects(spread_received=1.0), 4).work(bucket) == 4 * 2500 * 8
    assert Sparsity(workload(), Effects(select=1.0, mirror=0.5), 4).work(bucket, mirror=True) == 1.5 * bucket.size


def test_dense_where_sparse_does_not_pay():
    """A small tensor costs more to choose from than to send whole; a large one does not."""
    line = AffineCost(((1e-4, 4e-9),))
    pricing = Pricing({"all_reduce": line, "all_gather": line}, 4, effects=Effects(select=1e-10, select_time=5e-5))
    plan = falling_back(sparsely(one_by_one(workload()), 0.01), workload(), pricing)
    assert [bucket.density for bucket in plan.buckets] == [0.01, None, 0.01]
    for bucket in plan.buckets:
        assert (bucket.density is not None) == (break_even(pricing, bucket.size) >= 0.01)
    flat = AffineCost(((1e-4, 0.0),))
    assert (
        falling_back(plan, workload(), Pricing({"all_reduce": flat, "all_gather": flat}, 4)) == plan
    )  # as long: sparse
    dear = replace(pricing, effects=Effects(select=1e-6))
    alone = falling_back(replace(plan, mirror=True), workload(), dear)
    assert not alone.sparse
    assert not alone.mirror


@settings(max_examples=examples(30))
@given(priced(), st.sampled_from([0.001, 0.01, 0.1, 1.0]), st.booleans(), st.integers(1, 2))
def test_no_plan_beats_its_bound(pricing, density, release, channels):
    work = workload()
    plan = replace(sparsely(one_by_one(work), density), release=release, channels=channels)
    time = engine.predict_timeline(work, plan, pricing).iteration_time
    assert time >= plan_bound(work, plan, pricing) * (1 - 1e-12) >= work.compute_time * (1 - 1e-12)
