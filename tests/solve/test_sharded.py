"""Groups of blocks for sharded parameters: against every grouping, on workloads as they are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from osfmodel import Effects, Layer, PlanError, UsageError, Workload, load_cluster, load_workload, pricing_of
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.modules import SHARDED, blocks, in_micro_batches, wrapped
from osfmodel.entities.plan import PLAIN
from osfmodel.entities.sharding import EACH, LAST, LAST_KEPT, SHARDS_EACH, Sharding
from osfmodel.solve import SOLVERS, Limits, Question
from osfmodel.solve.bounds import plan_bound
from osfmodel.solve.search import group_search
from osfmodel.solve.search.group_search import Grouping, GroupSearch
from osfmodel.solve.sharded_bounds import replica_counts, replicas_in
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import peak_of, peak_within
from tests.draws import examples, many, seeds

RULES = [replace(PLAIN, strategy=strategy) for strategy in SHARDED]


def drawn(rng, most=7):
    """A model of blocks of uneven parts, with or without parameters outside them, and prices between 4 workers."""
    layers = [Layer("embedding.weight", 1e-3, 1e-3, 4 * int(rng.integers(1, 3000)))]
    for block in range(int(rng.integers(2, most))):
        layers += [
            Layer(f"layers.{block}.{part}", *rng.uniform(0.2e-3, 3e-3, 2).tolist(), 4 * int(rng.integers(1, 4000)))
            for part in ("up", "down", "norm")[: int(rng.integers(1, 4))]
        ]
    layers.append(Layer("head.weight", 1e-3, 2e-3, 4 * int(rng.integers(1, 3000))))
    cost = AffineCost(((float(rng.uniform(1e-4, 3e-3)), float(rng.uniform(1e-8, 1e-6))),))
    effects = Effects(compute_slowdown=float(rng.choice([0, 0.3])), copy_in=1e-8, copy_out=2e-8)
    if rng.random() < 0.2:  # as in profiles of blocks alone
        layers = [replace(one, gradient_bytes=one.name.startswith("layers") * one.gradient_bytes) for one in layers]
    workload = Workload("drawn", tuple(layers), update_time=1e-3)
    pricing = replace(Pricing.of(cost, effects, workers=4), per_host=2)
    return workload, replace(pricing, parts=lambda ranks, apart: replace(pricing, workers=ranks))


def every_grouping(workload):
    """Groupings with groups of at most twice the largest block, in bytes as padded for 4 ranks."""
    names = blocks(workload)
    sizes = [
        sum(-(-one.gradient_bytes // 16) * 16 for one in workload.layers if one.name.startswith(f"{name}."))
        for name in names
    ]
    for count in range(len(names)):
        for ends in combinations(range(1, len(names)), count):
            groups = list(pairwise([0, *ends, len(names)]))
            if all(sum(sizes[start:end]) <= 2 * max(sizes) for start, end in groups):
                yield [names[start:end] for start, end in groups]


def with_memory(workload, rng):
    """The workload with activations of random sizes, and an optimizer without state."""
    layers = tuple(
        replace(one, activation_bytes=size, peak_bytes=0)
        for one, size in zip(workload.layers, rng.integers(0, 20_000, len(workload.layers)).tolist(), strict=True)
    )
    there, found = 0, []
    for one in layers:
        there += one.activation_bytes
        found.append(replace(one, peak_bytes=there + one.activation_bytes // 2))
    return replace(workload, layers=tuple(found), state_bytes=0)


def plan_of(workload, groups, setting, kept=(), replicas=1):
    """The plan of groups of modules under a setting, as a user would write it."""
    ahead, inputs, separate = setting
    rules = Sharding((), replicas, reduce_inputs=inputs, separate=separate)
    return wrapped(workload, group_search.groups_for(groups, ahead, kept), rules)


def seconds(workload, plan, pricing):
    return predict_timeline(workload, plan, pricing).iteration_time


def some_room(workload, pricing, rng):
    """Memory between that of a group per block and that of keeping all."""
    each = [(name,) for name in blocks(workload)]
    low, high = (
        peak_of(workload, plan, predict_timeline(workload, plan, pricing), 4).bytes
        for plan in (plan_of(workload, each, group_search.SETTINGS[0], kept) for kept in ((), range(len(each))))
    )
    return MemoryLimit(int(low + rng.uniform(0, 1) * (high - low)))


def best_time(workload, pricing):
    return min(
        seconds(workload, plan_of(workload, groups, setting), pricing)
        for groups in every_grouping(workload)
        for setting in group_search.SETTINGS
    )


@cache
def small(seed):
    """A drawn model of few blocks, its prices, and the least time of every grouping."""
    workload, pricing = drawn(np.random.default_rng(seed), 6)
    return workload, pricing, best_time(workload, pricing)


@cache
def small_within(seed):
    """A drawn model of few blocks, its prices, some memory, and the least time within it."""
    rng = np.random.default_rng(seed)
    workload, pricing = drawn(rng, 5)
    workload = with_memory(workload, rng)
    room = some_room(workload, pricing, rng)
    return workload, pricing, room, best_within(workload, pricing, room)


def best_within(workload, pricing, room):
    """The least time of every grouping that fits, with every choice of groups that are kept; None if none fits."""
    found = []
    for groups in every_grouping(workload):
        for kept in (some for size in range(len(groups) + 1) for some in combinations(range(len(groups)), size)):
            for setting in group_search.SETTINGS:
                plan = plan_of(workload, groups, setting, kept)
                timeline = predict_timeline(workload, plan, pricing)
                found.append((timeline.iteration_time, plan, timeline))
    for time, plan, timeline in sorted(found, key=lambda row: row[0]):
        if peak_within(room, workload, plan, timeline, pricing.workers).bytes <= room.bytes:
            return time
    return None


@pytest.mark.parametrize("seed", seeds(8, 300))
def test_no_grouping_is_faster_by_more_than_is_worth_a_change(seed):
    """Models of few blocks, where every grouping is timed: on shortened workloads, and up to NEGLIGIBLE."""
    workload, pricing, best = small(seed)
    solution = SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0]))
    plan, timeline = solution.require()
    plan.require_valid(workload)
    assert best >= timeline.iteration_time * (1 - group_search.NEGLIGIBLE) - 1e-12
    assert solution.lower_bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("seed", seeds(6, 40))
def test_no_grouping_within_memory_is_faster(seed):
    """Memory between that of a group per block and that of keeping all; activations, types and all."""
    workload, pricing, room, best = small_within(seed)
    solution = SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0], Limits(memory=room)))
    plan, timeline = solution.require()
    assert peak_within(room, workload, plan, timeline, 4).bytes <= room.bytes
    assert best >= timeline.iteration_time * (1 - group_search.NEGLIGIBLE) - 1e-12
    assert solution.lower_bound <= best * (1 + 1e-12)


def test_more_memory_is_never_slower_and_keeps_groups():
    rng = np.random.default_rng(3)
    workload, pricing = drawn(rng, 12)
    workload = with_memory(workload, rng)
    times, kept = [], []
    for room in (70_000, 90_000, 120_000, 10**9):
        question = Question(workload, pricing.slower(3), RULES[0], Limits(memory=MemoryLimit(room)))
        plan, timeline = SOLVERS["sharded"].solve(question).require()
        times.append(timeline.iteration_time)
        kept.append(sum(group.reshard is False for group in plan.sharding.groups if group.modules))
    assert times == sorted(times, reverse=True)
    assert kept[-1] == sum(1 for group in plan.sharding.groups if group.modules)


def test_what_does_not_fit_is_said_with_the_largest_part_and_a_remedy():
    rng = np.random.default_rng(3)
    workload, pricing = drawn(rng, 6)
    question = Question(with_memory(workload, rng), pricing, RULES[0], Limits(memory=MemoryLimit(1000)))
    with pytest.raises(
        PlanError, match=r"does not fit: a group per block needs .* of 1000 B; the largest part is .*: "
    ):
        SOLVERS["sharded"].solve(question)


def test_groups_keep_the_largest_bucket_and_blocks_stay_whole():
    workload, pricing = drawn(np.random.default_rng(4))
    sizes = [sum(one.gradient_bytes for one in workload.layers if one.name.startswith(f"{name}."))
             for name in blocks(workload)]  # fmt: skip
    most = max(sizes) + min(sizes) + 64
    plan = SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0], Limits(most))).require_plan()
    assert all(bucket.size <= most for bucket, group in zip(plan.buckets, plan.sharding.groups, strict=True)
               if group.modules)  # fmt: skip
    with pytest.raises(PlanError, match=r"--max-bucket 8 B: block 'layers\.\d' holds .*whole blocks: raise it"):
        SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0], Limits(8)))
    with pytest.raises(UsageError, match="--max-buckets does not work with groups of FSDP2"):
        SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0], Limits(max_buckets=2)))


@pytest.mark.parametrize(("few", "share", "loss"), [(12, 0.98, 0.03), (0, 0.8, 0.05)])  # 99 %, 2.6 %; 83 %, 4.6 %
@many(12, 150)
def test_a_search_end_by_end_comes_close_to_every_grouping(monkeypatch, few, share, loss, many):
    """The searches for models of 8 to 12 blocks and of more, on smaller ones: how often they find the best."""
    monkeypatch.setattr(group_search, "FEW", 0)
    monkeypatch.setattr(group_search, "FEW_CHANGED", few)
    above = []
    for workload, pricing, best in map(small, range(many)):
        plan = SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0])).require_plan()
        above.append(seconds(workload, plan, pricing) / best - 1)
    assert float(np.mean(np.array(above) <= group_search.NEGLIGIBLE)) > share
    assert max(above) < loss


@pytest.mark.parametrize(
    ("few", "share", "loss", "many"),
    [
        (12, 0.95, 0.01, 6),
        *(pytest.param(*row, 60, marks=pytest.mark.long) for row in ((12, 0.95, 0.01), (0, 0.8, 0.1))),
    ],
)  # of 60: 98 %, 0.2 %; 85 %, 9.7 %
def test_a_search_end_by_end_within_memory_comes_close_to_every_grouping(monkeypatch, few, share, loss, many):
    monkeypatch.setattr(group_search, "FEW_KEPT", 0)
    monkeypatch.setattr(group_search, "FEW_CHANGED", few)
    above = []
    for workload, pricing, room, best in map(small_within, range(many)):
        question = Question(workload, pricing, RULES[0], Limits(memory=room))
        plan = SOLVERS["sharded"].solve(question).require_plan()
        above.append(seconds(workload, plan, pricing) / best - 1)
    assert float(np.mean(np.array(above) <= group_search.NEGLIGIBLE)) > share
    assert max(above) < loss


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.strategy)
@many(6, 40)
def test_condensed_workloads_take_the_same_time_and_no_less_memory(rules, many):
    rng = np.random.default_rng(5)
    for _ in range(many):
        workload, pricing = drawn(rng)
        workload = with_memory(workload, rng) if rng.random() < 0.5 else replace(workload, state_bytes=0)
        replicas = replicas_in(pricing) if rules.strategy == SHARDED[1] else 1
        search = GroupSearch(workload, pricing, replicas)
        count = len(search.names)
        ends = frozenset(place for place in range(1, count) if rng.random() < 0.5)
        kept = frozenset(place for place in (0, *ends) if rng.random() < 0.3)
        room = MemoryLimit(1)
        for setting in group_search.SETTINGS:
            grouping = Grouping(ends, kept).under(*setting)
            time = seconds(workload, search.plan(grouping, workload), pricing)
            assert search.time(grouping) == pytest.approx(time, rel=1e-12)
            peak = search.peak(grouping, workload, room)
            assert peak <= search.peak(grouping, search.workload, room) <= peak + 16 * len(workload.layers)
        assert len(search.workload.layers) == count + 2


@pytest.mark.parametrize("seed", seeds(16, 60))
def test_groupings_are_timed_as_their_plans_and_bounded_below(seed):
    """Without a plan each: also micro-batches of every form, blocks inside each other, types apart, and blocking."""
    rng = np.random.default_rng([6, seed])
    workload, pricing = drawn(rng)
    layers = list(workload.layers)
    if rng.random() < 0.3:  # the first block is used once more, behind the second
        layers.insert(-1, Layer("layers.0.again", 1e-3, 2e-3, 4 * int(rng.integers(0, 2) * 500)))
    if rng.random() < 0.3:
        layers = [replace(one, dtype=str(rng.choice(("float32", "bfloat16")))) for one in layers]
    workload = replace(workload, layers=tuple(layers))
    pricing = replace(pricing, blocking=bool(rng.random() < 0.2))
    replicas, form = int(rng.choice((1, 2))), (EACH, SHARDS_EACH, LAST, LAST_KEPT)[rng.integers(4)]
    search = GroupSearch(workload, pricing, replicas, micro_batches=(int(rng.integers(1, 4)), form))
    for setting in group_search.SETTINGS:
        ends = frozenset(place for place in range(1, len(search.names)) if rng.random() < 0.5)
        kept = frozenset(place for place in (0, *ends) if rng.random() < 0.3)
        grouping = Grouping(ends, kept).under(*setting)
        plan = search.plan(grouping, search.workload)
        time = predict_timeline(search.workload, plan, pricing).iteration_time
        assert search.time(grouping, most=time * (1 + 1e-12)) == pytest.approx(time, rel=1e-12)


def test_profiles_with_segments_to_recompute_are_planned():
    """Segments name layers that a shortened workload has no more."""
    workload = load_workload("resnet50-memory")
    assert workload.segments
    plan = SOLVERS["sharded"].solve(Question(workload, drawn(np.random.default_rng(1))[1], RULES[0])).require_plan()
    plan.require_valid(workload)


def test_blocks_are_those_of_the_workload_as_it_is():
    """Modules whose names merely end in a number: in the shortened workload the parts look numbered themselves."""
    workload = load_workload("googlenet-k80-tensors")
    plan = SOLVERS["sharded"].solve(Question(workload, drawn(np.random.default_rng(1))[1], RULES[0])).require_plan()
    assert {name for group in plan.sharding.groups for name in group.modules} == set(blocks(workload))


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.strategy)
@pytest.mark.parametrize("blocking", [False, True])
@many(2, 30)
def test_the_bound_is_below_every_grouping(rules, blocking, many):
    rng = np.random.default_rng(6)
    for _ in range(many):
        workload, pricing = drawn(rng, 5)
        pricing = replace(pricing, blocking=blocking)
        pricing = replace(pricing, parts=lambda ranks, apart, pricing=pricing: replace(pricing, workers=ranks))
        counts = [1] if rules.strategy == SHARDED[0] else [2]
        resharded = Question(workload, pricing, rules).lower_bound
        kept = Question(workload, pricing, rules, Limits(memory=MemoryLimit(10**9))).lower_bound
        for groups in every_grouping(workload):
            for setting, replicas in product(group_search.SETTINGS, counts):
                plan = plan_of(workload, groups, setting, replicas=replicas)
                time = seconds(workload, plan, pricing)
                assert resharded <= time * (1 + 1e-12)
                assert plan_bound(workload, plan, pricing) <= time * (1 + 1e-12)
                plan = plan_of(workload, groups, setting, range(0, len(groups), 2), replicas)
                time = seconds(workload, plan, pricing)
                assert kept <= time * (1 + 1e-12)
                assert plan_bound(workload, plan, pricing) <= time * (1 + 1e-12)
        for groups in ([], [blocks(workload)[:1]]):  # one group of nearly everything is no grouping of all blocks
            for types in ({}, {"gather_dtype": "bfloat16"}, {"gather_dtype": "bfloat16", "reduce_dtype": "float32"}):
                low = wrapped(workload, group_search.groups_for(groups), Sharding((), counts[0], **types))
                assert plan_bound(workload, low, pricing) <= seconds(workload, low, pricing) * (1 + 1e-12)
        each = group_search.groups_for([(name,) for name in blocks(workload)])
        low = wrapped(workload, each, Sharding((), counts[0], "bfloat16", "float32"))
        assert plan_bound(workload, low, pricing) <= seconds(workload, low, pricing) * (1 + 1e-12)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("form", [EACH, SHARDS_EACH, LAST, LAST_KEPT])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.covering
def test_the_bound_of_several_micro_batches_is_below_every_grouping(rules, form, count):
    """Bounds add up over micro-batches, and more than computation is left of them where the network is slow."""
    rng = np.random.default_rng(count)
    replicas = 1 if rules.strategy == SHARDED[0] else 2
    for number in range(examples(4)):
        workload, pricing = drawn(rng, 4)
        pricing = replace(pricing.slower(10.0 ** (number % 3)), blocking=number % 4 == 3)
        pricing = replace(pricing, parts=lambda ranks, apart, pricing=pricing: replace(pricing, workers=ranks))
        limits = Limits(memory=MemoryLimit(10**9))
        resharded = Question(workload, pricing, rules, micro_batches=(count, form)).lower_bound
        kept = Question(workload, pricing, rules, limits, (count, form)).lower_bound
        one = (workload.forward_time + workload.backward_time) * count
        assert resharded >= kept >= one + workload.update_time / 4
        for groups in every_grouping(workload):
            for setting in group_search.SETTINGS:
                for places, bound in (((), resharded), (range(0, len(groups), 2), kept)):
                    plan = in_micro_batches(plan_of(workload, groups, setting, places, replicas), count, form)
                    time = seconds(workload, plan, pricing)
                    assert bound <= time * (1 + 1e-12)
                    assert plan_bound(workload, plan, pricing) <= time * (1 + 1e-12)


@pytest.mark.parametrize(("form", "least"), [(EACH, 0.8), (LAST, 0.8), (LAST_KEPT, 0.7)])
def test_the_bound_of_several_micro_batches_counts_what_each_sends(form, least):
    workload, pricing = drawn(np.random.default_rng(8), 12)
    each = [(name,) for name in blocks(workload)]
    plan = in_micro_batches(plan_of(workload, each, group_search.SETTINGS[0]), 4, form)
    slow = pricing.slower(100)
    assert plan_bound(workload, plan, slow) > least * seconds(workload, plan, slow)


def test_the_bound_counts_copies_out_of_gathered_messages():
    """The second block is copied out while forward waits for the first, so the bound is near the step."""
    layers = [Layer(f"layers.{block}.up", 2e-3, 3e-3, 40_000) for block in range(2)]
    workload = Workload("two", tuple(layers), update_time=1e-3)
    pricing = Pricing.of(AffineCost(((1e-3, 1e-8),)), Effects(copy_out=2e-8), workers=4)
    plan = plan_of(workload, [(name,) for name in blocks(workload)], group_search.SETTINGS[0])
    step = seconds(workload, plan, pricing)
    assert 0.94 * step < plan_bound(workload, plan, pricing) <= step


def test_the_bound_counts_what_is_gathered_again():
    """A slow network: nearly all of the step is three collectives for each block, and the bound knows."""
    workload, pricing = drawn(np.random.default_rng(8), 12)
    slow = pricing.slower(100)
    solution = SOLVERS["sharded"].solve(Question(workload, slow, RULES[0]))
    assert solution.gap < 0.2
    kept = Question(workload, slow, RULES[0], Limits(memory=MemoryLimit(10**9)))
    assert kept.lower_bound < solution.lower_bound * 0.8


def test_the_bound_counts_communication():
    """One group, slow network: the bound is more than computation, and not far below."""
    workload, pricing = drawn(np.random.default_rng(1))
    slow = pricing.slower(100)
    plan = wrapped(workload, [], Sharding(()))
    time = predict_timeline(workload, plan, slow).iteration_time
    assert workload.compute_time * 10 < plan_bound(workload, plan, slow) < time < plan_bound(workload, plan, slow) * 1.3


def test_other_rules_are_refused():
    workload, pricing = drawn(np.random.default_rng(2))
    with pytest.raises(UsageError, match="take plan 'planned'"):
        SOLVERS["sharded"].solve(Question(workload, pricing))


@pytest.mark.parametrize(("workers", "per_host", "replicas"), [(32, 8, 4), (8, 8, 1), (12, 8, 1), (4, 1, 1)])
def test_a_replica_is_a_host(workers, per_host, replicas):
    pricing = replace(Pricing.of(AffineCost(((1e-3, 1e-9),)), workers=workers), per_host=per_host)
    assert replicas_in(pricing) == replicas


def test_replicas_of_hsdp_are_one_per_host_or_any_number_that_fits():
    cluster = load_cluster("nccl:h100x8,400Gbps,ib")
    pricing = pricing_of(cluster, 32)
    assert replica_counts(SHARDED[0], pricing, any_number=True) == [1]
    assert replica_counts(SHARDED[1], pricing, any_number=False) == [4, 2]
    assert replica_counts(SHARDED[1], pricing, any_number=True) == [4, 2, 8, 16]
    assert replica_counts(SHARDED[1], replace(pricing, parts=None), any_number=True) == [4]
