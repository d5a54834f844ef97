"""One plan for several worker counts against the best such plan by exhaustive search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from osfmodel import Layer
from osfmodel.cost import AffineCost
from osfmodel.solve import Limits
from osfmodel.solve import exact as merge
from osfmodel.solve.search.robust import robust_ends
from osfmodel.solve.solution import allowed, finish, groups_of
from tests import exhaustive
from tests.conftest import workload_of
from tests.problems import asked


def instances(count):
    rng = np.random.default_rng(31)
    for _ in range(count):
        length = int(rng.integers(2, 10))
        ready = (0.1 + np.cumsum(rng.exponential(1, length))).tolist()
        workload = workload_of(ready, (1 + rng.pareto(1, length) * 20).astype(int).tolist())
        yield workload, [AffineCost(((a, 0.02),)) for a in (0.05, 0.5, 3.0)]


def test_close_to_the_best_single_plan_and_never_worse_than_its_starts():
    ratios, improved = [], 0
    for workload, costs in instances(60):
        gradients = workload.gradients
        starts = [merge.optimal_ends(gradients, cost) for cost in costs]
        optima = [merge.solve(asked(workload, cost)).timeline.iteration_time for cost in costs]

        def regret(ends, gradients=gradients, workload=workload, costs=costs, optima=optima):
            times = [max(workload.compute_time, finish(groups_of(ends), gradients, cost)) for cost in costs]
            return max(time / best for time, best in zip(times, optima, strict=True))

        found = regret(robust_ends(workload, costs, optima, starts, Limits()))
        best = min(map(regret, exhaustive.all_ends(len(gradients))))
        assert found <= min(map(regret, starts)) * (1 + 1e-9)
        assert found >= best * (1 - 1e-9)
        ratios.append(found / best)
        improved += found < min(map(regret, starts)) * (1 - 1e-6)
    assert np.median(ratios) < 1 + 1e-9
    assert max(ratios) < 1.1
    assert improved >= 5


def test_limits_are_kept():
    limits = Limits(max_buckets=2)
    for workload, costs in instances(20):
        starts = [merge.optimal_ends(workload.gradients, cost, limits) for cost in costs]
        optima = [merge.solve(asked(workload, cost, limits)).timeline.iteration_time for cost in costs]
        ends = robust_ends(workload, costs, optima, starts, limits)
        assert allowed(groups_of(ends), workload.gradients, limits)


def test_ceilings_are_kept_where_a_start_keeps_them():
    """The plan stays within 0.1 % of the optimum under the first cost, for what it gains under the others."""
    for workload, costs in instances(40):
        starts = [merge.optimal_ends(workload.gradients, cost) for cost in costs]
        optima = [merge.solve(asked(workload, cost)).timeline.iteration_time for cost in costs]
        ends = robust_ends(workload, costs, optima, starts, Limits(), [optima[0] * 1.001])
        time = max(workload.compute_time, finish(groups_of(ends), workload.gradients, costs[0]))
        assert time <= optima[0] * 1.001 * (1 + 1e-9)


def test_what_computation_hides_is_not_cut():
    """The first layer sends nothing and computes for long: one bucket is as fast as any, and the fewest."""
    workload = workload_of([1.0, 2.0, 3.0], [10, 10, 10])
    workload = replace(workload, layers=(Layer("first", 0.0, 100.0, 0), *workload.layers))
    assert robust_ends(workload, [AffineCost(((0.01, 0.02),))], [103.0], [(3,)], Limits()) == (3,)
