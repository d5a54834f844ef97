"""Every entry of SOLVERS, the moment it is listed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from osfmodel import SOLVERS, Effects, Limits, Question, Status, UsageError, engine
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.plan import PLAIN, Objective
from osfmodel.solve.bounds import objective_bound
from osfmodel.targets.named_plans import make_plan
from tests import exhaustive
from tests.conftest import workload_of
from tests.draws import examples
from tests.problems import COST_MAKERS, affine, asked, min_of_affine, random_problem

OBJECTIVES = [PLAIN, Objective(2), Objective(forward_overlap=True), Objective(2, True), Objective(1, True, "split")]
ORDINARY = [name for name, rule in SOLVERS.items() if rule.serves(PLAIN)]
"""Rules for replicated parameters; those for sharded ones are in tests/solve/test_sharded.py."""
WHOLE = [name for name in ORDINARY if not any(map(SOLVERS[name].serves, OBJECTIVES[1:]))]
"""Rules for stock frameworks, which neither cut nor reorder tensors."""


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("make_cost", COST_MAKERS)
def test_solutions_are_valid_priced_by_the_engine_and_above_bound_and_optimum(name, make_cost):
    rng = np.random.default_rng(21)
    for _ in range(examples(15)):
        problem, cost = random_problem(rng), make_cost(rng)
        workload = workload_of([time + 0.01 for time in problem.ready_times], problem.sizes, problem.dtypes)
        question = asked(workload, cost)
        solution = SOLVERS[name].solve(question)
        plan, timeline = solution.require()
        plan.require_valid(workload)
        assert timeline == engine.predict_timeline(workload, plan, question.pricing)
        assert solution.lower_bound <= timeline.iteration_time * (1 + 1e-12)
        assert solution.gap >= -1e-12
        best = exhaustive.solve(question).require()[1].iteration_time
        assert timeline.iteration_time >= best * (1 - 1e-12)
        if solution.status is Status.OPTIMAL:
            assert timeline.iteration_time == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("name", ORDINARY)
def test_limits_are_kept_or_refused(name):
    rng = np.random.default_rng(22)
    for _ in range(examples(20 if name in WHOLE else 4)):
        problem, cost = random_problem(rng), affine(rng)
        workload = workload_of([time + 0.01 for time in problem.ready_times], problem.sizes, problem.dtypes)
        limits = Limits(max_bucket_bytes=int(rng.integers(10, 300)), max_buckets=int(rng.integers(1, 5)))
        solution = SOLVERS[name].solve(asked(workload, cost, limits))
        if solution.plan is None:
            assert solution.status in (Status.INFEASIBLE, Status.BEYOND_LIMITS)
            assert solution.timeline is None
            assert solution.gap is None
            continue
        assert limits.allow(solution.plan)
        assert len(solution.plan.buckets) <= limits.max_buckets
        assert all(bucket.size <= limits.max_bucket_bytes for bucket in solution.plan.buckets)


@pytest.mark.parametrize("name", ORDINARY)
def test_the_same_question_gets_the_same_answer(name):
    rng = np.random.default_rng(23)
    problem, cost = random_problem(rng), min_of_affine(rng)
    workload = workload_of([time + 0.01 for time in problem.ready_times], problem.sizes, problem.dtypes)
    solution = SOLVERS[name].solve(asked(workload, cost))
    assert solution == SOLVERS[name].solve(asked(workload, cost))
    assert solution.timeline is solution.timeline


def test_statuses_are_sentences_and_failures_carry_a_remedy():
    for status in Status:
        assert len(status.value.split()) > 5
    workload = workload_of([float(i + 1) for i in range(20)], [10] * 20)
    solution = exhaustive.solve(asked(workload, affine(np.random.default_rng(1))))
    assert solution.status is Status.TOO_LARGE
    assert "optimal" in solution.status.value


BUSY = {"workers": 4, "effects": Effects(hook_time=0.05, copy_in=1e-3, compute_slowdown=0.2), "in_flight": 2}
"""Prices for which a search would plan again: effects, and several collectives in flight."""


@pytest.mark.parametrize("name", ORDINARY)
def test_the_named_plan_is_what_the_solver_gives_unless_it_searches(name):
    rng = np.random.default_rng(25)
    for _ in range(examples(10 if name in WHOLE else 3)):
        problem = random_problem(rng)
        workload = workload_of([time + 0.01 for time in problem.ready_times], problem.sizes, problem.dtypes)
        pricing = replace(Pricing.of(affine(rng)), **BUSY)
        own = SOLVERS[name].solve(Question(workload, pricing)).plan
        named = make_plan(name, workload, pricing, PLAIN)
        times = [engine.predict_timeline(workload, plan, pricing).iteration_time for plan in (named, own)]
        assert named == own or (SOLVERS[name].searches and times[0] <= times[1])


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("objective", OBJECTIVES[1:], ids=str)
def test_a_named_plan_is_carried_out_under_any_rules(name, objective):
    """A rule that does not serve these rules gives the plan that it makes for its own."""
    problem, rule = random_problem(np.random.default_rng(31)), SOLVERS[name]
    workload = workload_of([time + 0.01 for time in problem.ready_times], problem.sizes)
    pricing = replace(Pricing.of(affine(np.random.default_rng(26))), **BUSY)
    named = make_plan(name, workload, pricing, objective)
    assert named.objective == objective or (rule.chooses and objective.permits(named.objective))
    if not rule.serves(objective):
        assert named == make_plan(name, workload, pricing).under(objective)
    elif not rule.searches:
        assert named == rule.solve(Question(workload, pricing, objective)).plan


@pytest.mark.parametrize("name", ORDINARY)
def test_alternating_dtypes_and_nothing_to_send(name):
    rng = np.random.default_rng(24)
    mixed = workload_of([float(i + 1) for i in range(8)], rng.integers(1, 50, 8).tolist(), ["a", "b"] * 4)
    empty = workload_of([1.0], [0])
    for workload in (mixed, empty):
        plan, timeline = SOLVERS[name].solve(asked(workload, affine(rng))).require()
        plan.require_valid(workload)
        assert timeline.iteration_time >= workload.compute_time


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_rules_are_served_or_refused(name, objective):
    """Served: plans are valid, timed by the engine, and above the bound."""
    rng, rule = np.random.default_rng(24), SOLVERS[name]
    for _ in range(examples(4)):
        problem, cost = random_problem(rng), affine(rng)
        workload = workload_of([time + 0.01 for time in problem.ready_times], problem.sizes)
        question = Question(workload, Pricing.of(cost), objective)
        if not rule.serves(objective):
            with pytest.raises(UsageError, match="one collective at a time"):
                rule.solve(question)
            continue
        solution = rule.solve(question)
        plan, timeline = solution.require()
        plan.require_valid(workload)
        assert plan.objective == objective or (rule.chooses and objective.permits(plan.objective))
        assert timeline == engine.predict_timeline(workload, plan, question.pricing)
        assert solution.lower_bound == objective_bound(workload, question.pricing, objective)
        assert solution.lower_bound <= timeline.iteration_time * (1 + 1e-12)
        assert rule.solve(question) == solution


def test_under_effects_and_with_several_in_flight_no_plan_is_called_optimal():
    workload = workload_of([1.0, 2.0], [10, 20])
    pricing = Pricing.of(affine(np.random.default_rng(1)))
    assert SOLVERS["optimal"].solve(Question(workload, pricing)).status is Status.OPTIMAL
    for changed in (replace(pricing, in_flight=2), replace(pricing, effects=Effects(hook_time=0.1))):
        assert SOLVERS["optimal"].solve(Question(workload, changed)).status is Status.HEURISTIC
