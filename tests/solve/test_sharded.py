"""Groups of blocks for sharded parameters: against every grouping, on workloads as they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from osfmodel import Effects, Layer, UsageError, Workload, load_workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.modules import SHARDED, blocks, wrapped
from osfmodel.entities.plan import PLAIN
from osfmodel.entities.sharding import Sharding
from osfmodel.solve import SOLVERS, Question
from osfmodel.solve.bounds import plan_bound
from osfmodel.solve.search import sharded

RULES = [replace(PLAIN, strategy=strategy) for strategy in SHARDED]


def drawn(rng, most=7):
    """A model with an embedding, blocks of uneven parts and a head, and prices between 4 workers."""
    layers = [Layer("embedding.weight", 1e-3, 1e-3, 4 * int(rng.integers(1, 3000)))]
    for block in range(int(rng.integers(2, most))):
        layers += [
            Layer(f"layers.{block}.{part}", *rng.uniform(0.2e-3, 3e-3, 2).tolist(), 4 * int(rng.integers(1, 4000)))
            for part in ("up", "down", "norm")[: int(rng.integers(1, 4))]
        ]
    layers.append(Layer("head.weight", 1e-3, 2e-3, 4 * int(rng.integers(1, 3000))))
    workload = Workload("drawn", tuple(layers), update_time=1e-3)
    cost = AffineCost(((float(rng.uniform(1e-4, 3e-3)), float(rng.uniform(1e-8, 1e-6))),))
    effects = Effects(compute_slowdown=float(rng.choice([0, 0.3])), copy_in=1e-8, copy_out=2e-8)
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


def best_time(workload, pricing, replicas=1):
    rules = Sharding((), replicas)
    return min(
        predict_timeline(workload, wrapped(workload, sharded.groups_for(groups, ahead), rules), pricing).iteration_time
        for groups in every_grouping(workload)
        for ahead in sharded.AHEAD
    )


@pytest.mark.parametrize("seed", range(300))
def test_no_grouping_is_faster_by_more_than_is_worth_a_change(seed):
    """Models of few blocks, where every grouping is timed: on shortened workloads, and up to NEGLIGIBLE."""
    workload, pricing = drawn(np.random.default_rng(seed), 6)
    solution = SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0]))
    plan, timeline = solution.require()
    plan.require_valid(workload)
    assert best_time(workload, pricing) >= timeline.iteration_time * (1 - sharded.NEGLIGIBLE) - 1e-12


def test_a_search_end_by_end_comes_close_to_every_grouping(monkeypatch):
    monkeypatch.setattr(sharded, "FEW", 0)
    above = []
    for seed in range(40):
        workload, pricing = drawn(np.random.default_rng(seed))
        plan = SOLVERS["sharded"].solve(Question(workload, pricing, RULES[0])).require_plan()
        above.append(predict_timeline(workload, plan, pricing).iteration_time / best_time(workload, pricing) - 1)
    assert max(above) < 0.03
    assert float(np.median(above)) < 1e-3


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.strategy)
def test_condensed_workloads_take_the_same_time(rules):
    rng = np.random.default_rng(5)
    for _ in range(40):
        workload, pricing = drawn(rng)
        replicas = sharded.replicas_in(pricing) if rules.strategy == SHARDED[1] else 1
        search = sharded.GroupSearch(workload, pricing, replicas)
        count = len(search.names)
        ends = frozenset(place for place in range(1, count) if rng.random() < 0.5)
        for ahead in sharded.AHEAD:
            plan = wrapped(workload, sharded.groups_for(search._groups(ends), ahead), Sharding((), replicas))
            time = predict_timeline(workload, plan, pricing).iteration_time
            assert search.time(ends, ahead) == pytest.approx(time, rel=1e-12)
        assert len(search.workload.layers) == count + 2


def test_profiles_with_segments_to_recompute_are_planned():
    """Segments name layers that a shortened workload has no more."""
    workload = load_workload("resnet50-memory")
    assert workload.segments
    plan = SOLVERS["sharded"].solve(Question(workload, drawn(np.random.default_rng(1))[1], RULES[0])).require_plan()
    plan.require_valid(workload)


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.strategy)
def test_the_bound_is_below_every_grouping(rules):
    rng = np.random.default_rng(6)
    for _ in range(60):
        workload, pricing = drawn(rng, 5)
        replicas = sharded.replicas_in(pricing) if rules.strategy == SHARDED[1] else 1
        question = Question(workload, pricing, rules)
        for groups in [[], *every_grouping(workload)]:
            for ahead in sharded.AHEAD:
                plan = wrapped(workload, sharded.groups_for(groups, ahead), Sharding((), replicas))
                time = predict_timeline(workload, plan, pricing).iteration_time
                assert question.lower_bound <= time * (1 + 1e-12)
                assert plan_bound(workload, plan, pricing) <= time * (1 + 1e-12)
        low = wrapped(workload, [], Sharding((), replicas, gather_dtype="bfloat16"))
        assert plan_bound(workload, low, pricing) <= predict_timeline(workload, low, pricing).iteration_time


def test_the_bound_counts_communication():
    """One group, slow network: the bound is more than computation, and not far below."""
    workload, pricing = drawn(np.random.default_rng(1))
    slow = pricing.slower(100)
    plan = wrapped(workload, [], Sharding(()))
    time = predict_timeline(workload, plan, slow).iteration_time
    assert workload.compute_time * 10 < plan_bound(workload, plan, slow) < time < plan_bound(workload, plan, slow) * 1.3


def test_other_rules_are_refused():
    workload, pricing = drawn(np.random.default_rng(2))
    with pytest.raises(UsageError, match="ask planned"):
        SOLVERS["sharded"].solve(Question(workload, pricing))


@pytest.mark.parametrize(("workers", "per_host", "replicas"), [(32, 8, 4), (8, 8, 1), (12, 8, 1), (4, 1, 1)])
def test_a_replica_is_a_host(workers, per_host, replicas):
    pricing = replace(Pricing.of(AffineCost(((1e-3, 1e-9),)), workers=workers), per_host=per_host)
    assert sharded.replicas_in(pricing) == replicas
