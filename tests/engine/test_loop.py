"""Horovod's loop against its ranks simulated cycle by cycle (tests/engine/horovod_loop.py), and its traps by hand."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.horovod_loop import ATOMIC_UNIT, PADDING, Loop, LoopIteration, carry_out, fuse, steady_iteration
from osfmodel.entities.effects import Effects
from tests.draws import examples, seeds
from tests.engine.horovod_loop import Iteration, Settings, Tensor, chosen, follow_job

SIZES = (8, 340, 340, 512, 600, 1024, 1500, 5000)
TIMES = tuple(Fraction(n, 6) for n in (0, 0, 1, 2, 3, 6, 9, 20))


def instance(rng: random.Random) -> tuple[Loop, Workload, Pricing]:
    """1 to 7 tensors with ties, dtypes, groups, a host ahead or in step, any cache, and both kinds of library."""
    count = rng.randint(1, 7)
    ahead = rng.choice([None, None, Fraction(0), Fraction(1, 2), Fraction(9, 10)])
    kinds = rng.choice([("float32",), ("float32", "float16")])
    layers: list[Layer] = []
    elapsed = forward = rng.choice(TIMES) + Fraction(1, 5)
    for i in range(count):
        backward = rng.choice(TIMES)
        elapsed += backward
        layers.insert(0, Layer(f"t{i}", forward if i == count - 1 else Fraction(0), backward, rng.choice(SIZES),
                               rng.choice(kinds), enqueue_time=None if ahead is None else elapsed * ahead))  # fmt: skip
    workload = Workload("w", tuple(layers), update_time=rng.choice(TIMES))
    effects = Effects(
        fusion_copy=rng.choice([Fraction(0), Fraction(1, 3000)]),
        negotiation=rng.choice([Fraction(0), Fraction(1, 7), Fraction(2)]),
        negotiation_miss=rng.choice([Fraction(0), Fraction(1, 11), Fraction(3)]),
        compute_slowdown=rng.choice([Fraction(0), Fraction(0), Fraction(1, 4)]),
    )
    cost = AffineCost(((rng.choice(TIMES), rng.choice([Fraction(0), Fraction(1, 2000), Fraction(1, 300)])),))
    pricing = replace(
        Pricing.of(cost, effects, workers=2), blocking=rng.random() < 0.5, per_host=rng.randint(1, 3)
    )  # fmt: skip
    names = list(workload.gradients.names)
    rng.shuffle(names)
    cuts = sorted(rng.sample(range(1, count), rng.randint(0, count - 1)))
    groups = tuple(tuple(names[a:b]) for a, b in itertools.pairwise([0, *cuts, count]))
    loop = Loop(
        threshold=rng.choice([0, 1, 512, 700, 1024, 2048, 5000, 10**6]),
        cycle=rng.choice([Fraction(0), Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(20)]),
        groups=groups,
        use_groups=rng.random() < 0.3,
        cache_capacity=rng.choice([0, 1, 2, count // 2, count - 1, 1024, 1024, 1024]),
        waits=rng.random() < 0.5,
    )
    return loop, workload, pricing


def simulated(loop: Loop, workload: Workload, pricing: Pricing, iterations: int) -> list[Iteration]:
    """The same by the naive ranks."""
    gradients, effects = workload.gradients, pricing.effects
    ((latency, per_byte),) = pricing.cost().pieces
    told = Settings(
        threshold=loop.threshold,
        cycle=loop.cycle,
        negotiation=effects.negotiation,
        miss=effects.negotiation_miss,
        capacity=loop.cache_capacity,
        blocking=pricing.blocking,
        waits=loop.waits,
        local_size=pricing.per_host,
        latency=latency,
        per_byte=per_byte,
        copy=effects.fusion_copy,
        slowdown=effects.compute_slowdown,
        update=workload.update_time,
        computed=workload.forward_time + workload.backward_time,
        in_step=gradients.enqueue_times == gradients.ready_times,
        groups=loop.groups if loop.use_groups else (),
    )
    rows = zip(
        gradients.names,
        gradients.sizes,
        gradients.dtypes,
        gradients.ready_times,
        gradients.enqueue_times,
        strict=True,
    )
    return follow_job(told, [Tensor(*row) for row in rows], iterations)


def assert_alike(loop: Loop, workload: Workload, pricing: Pricing) -> None:
    """Equal in every number, after one iteration, a few, and when it has settled."""
    names = workload.gradients.names
    ranks = simulated(loop, workload, pricing, 24)
    for iterations in (1, 2, 3, 24):
        found = steady_iteration(loop, workload, pricing, iterations)
        expected = chosen(ranks[:iterations])
        assert [tuple(names[i] for i in batch) for batch in found.batches] == list(expected.batches)
        assert found.releases == expected.releases
        assert found.iteration_time == expected.time


@pytest.mark.parametrize("seed", seeds(40, 120))
def test_the_loop_does_what_the_ranks_do(seed):
    assert_alike(*instance(random.Random(seed)))


@settings(max_examples=examples(9))
@given(st.randoms(use_true_random=False))
def test_the_loop_does_what_the_ranks_do_wherever_one_looks(rng):
    assert_alike(*instance(rng))


@pytest.mark.parametrize("seed", seeds(40, 120))
def test_the_engine_takes_as_long_as_the_loop(seed):
    """The plan that the loop forms, priced as any other: exactly, with the effects that a loop knows."""
    loop, workload, pricing = instance(random.Random(seed))
    plan = carry_out(loop, workload, pricing)
    assert (
        predict_timeline(workload, plan, pricing).iteration_time
        == steady_iteration(loop, workload, pricing).iteration_time
    )


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_the_engine_takes_as_long_as_the_loop_with_stragglers_and_streams(seed):
    """In floating point, as these are."""
    loop, workload, pricing = instance(random.Random(seed))
    loop, workload = replace(loop, cycle=float(loop.cycle)), workload.scaled(1.0)
    values = {name: float(value) for name, value in pricing.effects.active.items()}
    effects = Effects(**values | {"straggler_deviation": 0.1, "compute_slowdown": 0})
    for other in (loop, replace(loop, streams=2), replace(loop, hierarchical=True)):
        paid = replace(pricing.slower(1.0), effects=effects, workers=4)
        found = steady_iteration(other, workload, paid).iteration_time
        plan = carry_out(other, workload, paid)
        assert predict_timeline(workload, plan, paid).iteration_time == pytest.approx(found, rel=1e-12)


UNIT = Pricing.of(AffineCost(((1, 0),)), workers=2)
"""One second for whatever is sent, by a library that the loop does not wait for."""
GLOO = replace(UNIT, blocking=True)
SINGLE, HALF = "float32", "float16"


def work(ready, sizes=None, dtypes=None, submitted=None, update=0):
    """Tensors t0, t1, ... ready at these whole seconds; 512 bytes each where nothing is said."""
    count = len(ready)
    sizes, dtypes = sizes or [512] * count, dtypes or [SINGLE] * count
    submitted = submitted or [None] * count
    steps = [after - before for before, after in itertools.pairwise([0, *ready])]
    rows = zip(itertools.count(), steps, sizes, dtypes, submitted, strict=False)
    layers = [Layer(f"t{i}", 0, step, size, kind, enqueue_time=told) for i, step, size, kind, told in rows]
    return Workload("w", tuple(reversed(layers)), update_time=update)


def told(found: LoopIteration) -> list[tuple[tuple[int, ...], float]]:
    return list(zip(found.batches, found.releases, strict=True))


def formed(workload, pricing=UNIT, iterations=24, **settings):
    return told(steady_iteration(Loop(**{"cycle": 0, **settings}), workload, pricing, iterations))


def grouping(workload, pricing=UNIT, **settings):
    return [batch for batch, _ in formed(workload, pricing, **settings)]


def test_mixed_types_are_looked_past_while_all_of_it_fits():
    """Half precision between single is passed over, and then goes first; not past what the threshold holds."""
    mixed = work([1] * 4, dtypes=[SINGLE, HALF, SINGLE, HALF])
    assert grouping(mixed, threshold=2048) == [(0, 2), (1, 3)]
    assert grouping(mixed, threshold=1024) == [(0, 2), (1, 3)]
    assert grouping(mixed, threshold=512) == [(0,), (1,), (2,), (3,)]
    large = work([1] * 3, [512, 1024, 512], [SINGLE, HALF, SINGLE])
    assert grouping(large, threshold=1024) == [(0,), (1,), (2,)]
    assert grouping(large, threshold=1536) == [(0, 2), (1,)]


def test_a_tensor_larger_than_the_threshold_goes_alone():
    assert grouping(work([1] * 5, [512, 512, 5000, 512, 512]), threshold=1024) == [(0, 1), (2,), (3, 4)]
    assert grouping(work([1] * 3, [512, 5000, 512], [SINGLE, HALF, SINGLE]), threshold=1024) == [(0,), (1,), (2,)]


def test_at_threshold_0_nothing_is_fused():
    assert grouping(work([1] * 3), threshold=0) == [(0,), (1,), (2,)]
    assert grouping(work([1] * 3), replace(GLOO, per_host=8), threshold=0) == [(0,), (1,), (2,)]


def test_the_threshold_is_rounded_up_for_all_ranks_of_a_host():
    """To multiples of 64 elements of 8 bytes each."""
    pair = work([1, 1])
    assert ATOMIC_UNIT == 512
    assert grouping(pair, replace(UNIT, per_host=1), threshold=1) == [(0,), (1,)]
    assert grouping(pair, replace(UNIT, per_host=1), threshold=513) == [(0, 1)]
    assert grouping(pair, replace(UNIT, per_host=2), threshold=1) == [(0, 1)]


def test_on_a_gpu_each_tensor_is_padded():
    """Three of 340 bytes are 1020, or 3 * 352 = 1056 with padding."""
    assert PADDING == 16
    assert grouping(work([1] * 3, [340] * 3), GLOO, threshold=1024) == [(0, 1, 2)]
    assert grouping(work([1] * 3, [340] * 3), UNIT, threshold=1024) == [(0, 1), (2,)]


THREE = work([3, 4, 5], dtypes=[SINGLE, HALF, SINGLE], update=5)
"""With a cycle of 10 s, the first iteration finds all at 10 and takes 17: those after find t0 at 3, the rest at 13."""


def test_within_a_cycle_the_order_is_that_of_the_first_launches():
    """The look-ahead put t2 before t1 when all were new, and so the cache has them."""
    assert formed(THREE, GLOO, iterations=1, cycle=10) == [((0, 2), 10), ((1,), 11)]
    assert formed(THREE, GLOO, cycle=10) == [((0,), 3), ((2,), 13), ((1,), 14)]


def test_what_the_cache_does_not_have_goes_in_the_order_of_submission():
    assert formed(THREE, GLOO, cycle=10, cache_capacity=0) == [((0,), 3), ((1,), 13), ((2,), 14)]


def test_of_a_cache_that_is_too_small_the_rest_takes_turns():
    """Room for one of two: what it has goes first, and what it has not drives that out."""
    pair = work([1, 1])
    turns = [formed(pair, GLOO, iterations, threshold=0, cache_capacity=1) for iterations in (1, 2, 3)]
    assert turns == [[((0,), 1), ((1,), 2)], [((1,), 1), ((0,), 2)], [((0,), 1), ((1,), 2)]]


def test_a_hit_is_used_last_and_the_longest_unused_makes_room():
    """The second of t1 and t2 has the first place, so that it goes first, is then the older one, and makes room."""
    three = work([1] * 3)
    turns = [
        [batch for batch, _ in formed(three, GLOO, iterations, threshold=0, cache_capacity=2)]
        for iterations in (1, 2, 3)
    ]
    assert turns == [[(0,), (1,), (2,)], [(2,), (1,), (0,)], [(0,), (1,), (2,)]]


def test_a_miss_costs_more_than_a_hit():
    """A cycle finds a tensor at once; to agree on it takes a second where it is new, or no longer known."""
    workload = work([5, 8])
    pricing = replace(UNIT, effects=Effects(negotiation_miss=1))
    assert formed(workload, pricing, iterations=1) == [((0,), 6), ((1,), 9)]
    assert formed(workload, pricing) == [((0,), 5), ((1,), 8)]
    assert formed(workload, pricing, cache_capacity=2) == [((0,), 5), ((1,), 8)]
    assert formed(workload, pricing, cache_capacity=1) == [((0,), 6), ((1,), 9)]


def test_without_the_cache_empty_cycles_cost_as_much():
    """One after the other from 0, a second each: that which begins at 5 finds it; it would at 5.5, too, at 6."""
    pricing = replace(UNIT, effects=Effects(negotiation_miss=1))
    assert formed(work([5]), pricing, iterations=1, cache_capacity=0) == [((0,), 6)]
    assert formed(work([5.5]), pricing, iterations=1, cache_capacity=0) == [((0,), 7)]


def test_a_library_of_the_loop_itself_gathers_what_comes_meanwhile():
    """Gloo: t0 for 3 s from 1 on, so that the next cycle finds two. NCCL: each is launched when it is there."""
    workload, slow = work([1, 2, 3]), AffineCost(((3, 0),))
    assert formed(workload, replace(Pricing.of(slow), blocking=True)) == [((0,), 1), ((1, 2), 4)]
    assert formed(workload, Pricing.of(slow)) == [((0,), 1), ((1,), 2), ((2,), 3)]
    assert formed(workload, Pricing.of(slow, workers=4), hierarchical=True) == [((0,), 1), ((1, 2), 4)]
    on_one_host = replace(Pricing.of(slow, workers=4), per_host=4)
    assert formed(workload, on_one_host, hierarchical=True) == formed(workload, on_one_host)


def test_streams_of_nccl_carry_collectives_side_by_side():
    """Two of 4 s, from 1 and from 2 on; gloo knows of no streams."""
    workload, slow = work([1, 2]), Pricing.of(AffineCost(((4, 0),)))
    one, two = Loop(cycle=0, threshold=0), Loop(cycle=0, threshold=0, streams=2)
    assert [steady_iteration(loop, workload, slow).iteration_time for loop in (one, two)] == [9, 6]
    assert carry_out(two, workload, slow).channels == 2
    gloo = replace(slow, blocking=True)
    assert [steady_iteration(loop, workload, gloo).iteration_time for loop in (one, two)] == [9, 9]
    assert carry_out(two, workload, gloo) == carry_out(one, workload, gloo)


def test_a_host_far_ahead_fills_batches_that_wait_for_their_last():
    """All is submitted at once: batches by the threshold alone. Over NCCL the stream waits for each, not the loop."""
    workload = work([2, 4, 6, 8], submitted=[1] * 4)
    assert formed(workload, threshold=2048, waits=True) == [((0, 1, 2, 3), 8)]
    assert formed(workload, threshold=1024, waits=True) == [((0, 1), 4), ((2, 3), 8)]
    loop = Loop(cycle=0, threshold=1024)
    found = steady_iteration(loop, workload, UNIT)
    assert told(found) == [((0, 1), 1), ((2, 3), 1)]
    assert found.iteration_time == steady_iteration(replace(loop, waits=True), workload, UNIT).iteration_time == 9


def test_ahead_of_the_device_by_a_factor():
    """At twice the speed the cycle at 4 finds all that is ready by 8."""
    workload = work([2, 4, 6, 8])
    assert formed(workload.ahead(2), iterations=1, cycle=4, threshold=4096) == [((0, 1, 2, 3), 4)]
    assert formed(workload.ahead(1), iterations=1, cycle=4) == formed(workload, iterations=1, cycle=4)
    assert formed(workload, iterations=1, cycle=4) == [((0, 1), 4), ((2, 3), 8)]


def test_groups_come_whole_and_are_never_fused_with_each_other():
    groups = {"groups": (("t0", "t3"), ("t1", "t2")), "use_groups": True}
    assert formed(work([1, 2, 3, 4]), **groups) == [((1, 2), 3), ((0, 3), 4)]
    assert grouping(work([1] * 4), **groups) == [(1, 2), (0, 3)]  # whole with the hook of t2, before t3
    assert grouping(work([1] * 4), threshold=512, **groups) == [(1,), (2,), (0,), (3,)]
    assert grouping(work([1] * 4), **groups | {"use_groups": False}) == [(0, 1, 2, 3)]


def test_at_cycle_0_a_tensor_goes_when_it_is_there():
    assert formed(work([1, 2.5, 7])) == [((0,), 1), ((1,), 2.5), ((2,), 7)]


def test_a_cycle_begins_no_sooner_than_the_one_before_has_ended():
    """A cycle of 2 s, gloo for 3 s: from 2 to 5, and at once from 5."""
    pricing = replace(Pricing.of(AffineCost(((3, 0),))), blocking=True)
    assert formed(work([1, 3, 4.5]), pricing, iterations=1, cycle=2) == [((0,), 2), ((1, 2), 5)]


def test_a_slower_device_delays_submissions():
    """While t0 is sent, from 1 to 5, half as fast: t1 is there at 5, t2 at 6; a host ahead submitted both before."""
    pricing = replace(Pricing.of(AffineCost(((4, 0),)), Effects(compute_slowdown=1)), blocking=True)
    assert formed(work([1, 3, 4]), pricing) == [((0,), 1), ((1,), 5), ((2,), 9)]
    assert formed(work([1, 3, 4], submitted=[1, 1.5, 2]), pricing) == [((0,), 1), ((1, 2), 6)]


def test_fuse_leaves_no_hole_behind_a_tensor_that_does_not_fit():
    gradients = work([1] * 3, [600, 600, 200]).gradients
    assert list(fuse(range(3), gradients, 1000)) == [[0], [1, 2]]


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_up_to_the_next_threshold_nothing_changes(seed):
    """Every threshold below it does the very same; with it something that was refused is not."""
    loop, workload, pricing = instance(random.Random(seed))
    here = steady_iteration(loop, workload, pricing, 8)
    most = sum(workload.gradients.sizes) + PADDING * len(workload.gradients) + ATOMIC_UNIT * pricing.per_host
    end = most if here.next_threshold is None else here.next_threshold
    for threshold in {*range(loop.threshold, end, 97), *range(loop.threshold, end, 512), end - 1} - {-1}:
        assert steady_iteration(replace(loop, threshold=max(threshold, loop.threshold)), workload, pricing, 8) == here
    if here.next_threshold is not None:
        beyond = steady_iteration(replace(loop, threshold=end), workload, pricing, 8).next_threshold
        assert beyond is None or beyond > end > loop.threshold


def test_at_the_next_threshold_mostly_something_else_is_sent():
    """Mostly, since passing over one more tensor may change nothing."""
    changed = []
    for seed in range(examples(50)):
        loop, workload, pricing = instance(random.Random(seed))
        here = steady_iteration(loop, workload, pricing, 8)
        if here.next_threshold is not None:
            beyond = steady_iteration(replace(loop, threshold=here.next_threshold), workload, pricing, 8)
            changed.append(here.batches != beyond.batches)
    assert sum(changed) > 0.6 * len(changed) > examples(10)
