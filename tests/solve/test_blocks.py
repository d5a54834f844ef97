"""Block sizes: the linear programme against a fine grid, the choice of layers against exhaustive search, and plans."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, product

import highspy
import numpy as np
import pytest
from scipy.optimize import OptimizeResult, linprog

from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost, TableCost
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.engine import predict_timeline
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.effects import Effects
from osfmodel.entities.plan import Block, Bucket, Objective, Plan, contiguous_plan, one_by_one
from osfmodel.solve import SOLVERS, Limits, Question, Status
from osfmodel.solve import blocks as search
from osfmodel.solve.blocks import resize, tape
from osfmodel.solve.bounds import objective_bound
from osfmodel.solve.exact import optimal
from tests.conftest import ROOT, workload_of
from tests.draws import examples

sys.path.insert(0, str(ROOT / "benchmarks"))
import block_choice

OVERLAP = Objective(forward_overlap=True)
RULES = [Objective(), OVERLAP, Objective(strategy="split"), Objective(forward_overlap=True, strategy="split")]


def made(rng: np.random.Generator, count: int, most: int = 40) -> Workload:
    """``count`` layers of a few elements, with forward, backward and update times."""
    layers = [
        Layer(f"l{i}", float(rng.uniform(0.1, 1)), float(rng.uniform(0.1, 1)), 4 * int(rng.integers(1, most)))
        for i in range(count)
    ]
    return Workload("made", tuple(layers), update_time=0.1)


def line(workload: Workload, latency: float = 0.2) -> AffineCost:
    """A line by which sending takes as long as backward."""
    return AffineCost(((latency, workload.backward_time / workload.gradient_bytes),))


def costs(workload: Workload) -> dict[str, AffineCost | TableCost]:
    one = line(workload)
    ((latency, slope),) = one.pieces
    total = workload.gradient_bytes
    return {
        "line": one,
        "lines": AffineCost(((latency, slope), (2 * latency, slope / 2))),
        "table": TableCost((4, total // 3, total // 2, total), (latency, 0.3, 0.9, 1.0)),
    }


def random_plan(rng: np.random.Generator, workload: Workload, objective: Objective, buckets: int) -> Plan:
    """Layers in any order, cut at any element."""
    order = rng.permutation(len(workload.gradients)).tolist()
    whole = tape.laid_out(workload, order)
    positions = sorted(4 * rng.choice(np.arange(1, whole.total // 4), buckets - 1, replace=False))
    return tape.plan_of(workload, whole, [float(position) for position in positions]).under(objective)


@pytest.mark.parametrize("objective", RULES)
@pytest.mark.parametrize("kind", ["line", "lines", "table"])
def test_the_recursion_behind_the_programme_is_the_engine(objective, kind):
    rng = np.random.default_rng(1)
    for _ in range(examples(6)):
        workload = made(rng, 5)
        pricing = Pricing.of(costs(workload)[kind])
        plan = random_plan(rng, workload, objective, int(rng.integers(1, 6)))
        problem = resize.problem_of(workload, pricing, objective)
        assert resize.time_of(problem, *tape.tape_of(plan)) == pytest.approx(
            predict_timeline(workload, plan, pricing).iteration_time, rel=1e-12
        )


def test_the_recursion_knows_launches_copies_and_jitter():
    rng = np.random.default_rng(2)
    every = Effects(launch_latency=0.05, copy_in=0.001, copy_out=0.002, fusion_copy=0.003, straggler_deviation=0.1)
    for objective in RULES:
        if objective.plain:
            continue  # the closed form charges copies by other rules; see its own tests
        # With a barrier buckets are copied out one after the other: the programme charges each its own share only.
        effects = every if objective.forward_overlap else replace(every, copy_out=0)
        workload = made(rng, 5)
        pricing = Pricing(Pricing.of(line(workload)).costs, 4, 1, effects)
        plan = random_plan(rng, workload, objective, 4)
        problem = resize.problem_of(workload, pricing, objective)
        predicted = predict_timeline(workload, plan, pricing).iteration_time
        assert resize.time_of(problem, *tape.tape_of(plan)) == pytest.approx(predicted, rel=1e-12)


def test_with_a_barrier_a_step_takes_at_least_what_it_computes_copies_out_and_updates():
    workload = made(np.random.default_rng(4), 5)
    pricing = Pricing.of(FREE, Effects(copy_out=0.002), workers=4)
    least = predict_timeline(workload, one_by_one(workload), pricing).iteration_time
    assert tape.times_of(workload, pricing, Objective()).least == pytest.approx(least, rel=1e-12)


def test_a_plan_survives_its_tape():
    rng = np.random.default_rng(3)
    for _ in range(20):
        workload = made(rng, 6)
        plan = random_plan(rng, workload, OVERLAP, 4)
        plan.require_valid(workload)
        laid, cuts = tape.tape_of(plan)
        again = tape.plan_of(workload, laid, [cut.position for cut in cuts]).under(OVERLAP)
        assert again == plan
        assert laid.total == workload.gradient_bytes


def grid(problem: resize.SizingProblem, laid: tape.Tape, cuts: list[tape.Cut]) -> float:
    """The least time over all positions in whole elements, each cut in its place."""
    choices = []
    for cut in cuts:
        low, high = laid.range_of(cut) if cut.before == cut.after else (cut.position, cut.position)
        choices.append(range(int(low), int(high) + 1, 4))
    best = float("inf")
    for positions in product(*choices):
        if list(positions) == sorted(positions):
            moved = [cut._replace(position=place) for cut, place in zip(cuts, positions, strict=True)]
            best = min(best, resize.time_of(problem, laid, moved))
    return best


@pytest.mark.parametrize("objective", RULES)
def test_the_linear_programme_equals_a_fine_grid(objective):
    """Never above the grid, and below it by no more than one element per cut is worth."""
    rng = np.random.default_rng(4)
    for _ in range(examples(2)):
        workload = made(rng, 4, most=10)
        cost = line(workload)
        problem = resize.problem_of(workload, Pricing.of(cost), objective)
        laid, cuts = tape.tape_of(random_plan(rng, workload, objective, 3))
        found = resize.resized(problem, laid, cuts)
        assert found.status is None
        coarse = grid(problem, laid, cuts)
        assert found.value <= coarse * (1 + 1e-9)
        assert found.value >= coarse - 2 * 4 * cost.pieces[0][1] * len(cuts) - 1e-9
        assert found.value == pytest.approx(resize.time_of(problem, laid, found.cuts), rel=1e-12)


@pytest.mark.parametrize("kind", ["lines", "table"])
def test_other_costs_never_get_worse_and_are_priced_as_they_are(kind):
    rng = np.random.default_rng(5)
    better = 0
    for _ in range(examples(6)):
        workload = made(rng, 5)
        problem = resize.problem_of(workload, Pricing.of(costs(workload)[kind]), OVERLAP)
        laid, cuts = tape.tape_of(random_plan(rng, workload, OVERLAP, 4))
        before = resize.time_of(problem, laid, cuts)
        found = resize.resized(problem, laid, cuts)
        assert found.status is None
        assert found.value <= before * (1 + 1e-12)
        better += found.value < before * (1 - 1e-6)
    assert better > 3


def exhaustive(workload: Workload, pricing: Pricing, objective: Objective, most: int) -> float:
    """Every order of the family, every number of collectives, every place of every cut, each by a linear programme."""
    problem = resize.problem_of(workload, pricing, objective)
    best = float("inf")
    for order in block_choice.orders(workload, objective):
        laid = tape.laid_out(workload, order)
        segments = len(laid.segments)
        places = sorted([(s, s) for s in range(segments)] + [(s, s + 1) for s in range(segments - 1)])
        for count in range(most):
            for chosen in combinations_with_replacement(places, count):
                if any(before[1] > after[0] for before, after in pairwise(chosen)):
                    continue  # an empty collective
                cuts = [tape.Cut(*place, (laid.starts[place[1]] + laid.starts[place[0] + 1]) / 2) for place in chosen]
                best = min(best, resize.resized(problem, laid, cuts).value)
    return best


@pytest.mark.parametrize("objective", [Objective(), OVERLAP])
def test_the_choice_of_layers_equals_exhaustive_search(objective):
    rng = np.random.default_rng(7)
    for count in (2, 3, 3, 3):
        workload = made(rng, count)
        pricing = Pricing.of(line(workload, 0.1))
        certificate = block_choice.certified(workload, pricing, objective, Limits(max_buckets=3))
        assert certificate.proven
        assert certificate.optimum == pytest.approx(exhaustive(workload, pricing, objective, 3), rel=1e-6)
        assert certificate.optimum * (1 - 1e-5) <= certificate.bound <= certificate.optimum


def test_the_choice_of_lines_is_no_worse_than_any_fixed_choice():
    """With two lines and one collective fewer choices are left: compare with each line taken alone."""
    rng = np.random.default_rng(8)
    workload = made(rng, 3)
    both = costs(workload)["lines"]
    limits = Limits(max_buckets=3)
    least = block_choice.certified(workload, Pricing.of(both), OVERLAP, limits).optimum
    for piece in both.pieces:
        alone = block_choice.certified(workload, Pricing.of(AffineCost((piece,))), OVERLAP, limits).optimum
        assert least <= alone * (1 + 1e-6)
    problem = resize.problem_of(workload, Pricing.of(both), OVERLAP)
    for order in block_choice.orders(workload, OVERLAP):
        laid = tape.laid_out(workload, order)
        for at in range(4, laid.total, 4):
            number = max(s for s in range(len(laid.segments)) if laid.starts[s] < at)
            edge = at == laid.starts[number + 1]
            cut = tape.Cut(number, number + edge, at)
            assert least <= resize.time_of(problem, laid, [cut]) * (1 + 1e-6)


@pytest.mark.parametrize("objective", [Objective(), OVERLAP])
@pytest.mark.parametrize("kind", ["line", "table"])
def test_certified_plans_are_valid_and_nothing_of_ours_beats_them(objective, kind):
    rng = np.random.default_rng(9)
    for count in (2, 3):
        workload = made(rng, count, most=4000)
        pricing = Pricing.of(costs(workload)[kind])
        certificate = block_choice.certified(workload, pricing, objective)
        plan, timeline = certificate.solution.require()
        plan.require_valid(workload)
        assert timeline == predict_timeline(workload, plan, pricing)
        assert certificate.solution.lower_bound <= certificate.optimum * (1 + 1e-9)
        assert timeline.iteration_time == pytest.approx(certificate.optimum, rel=2e-3)  # whole elements
        heuristic = search.solve(Question(workload, pricing, objective))
        if len(heuristic.plan.buckets) <= block_choice.COLLECTIVES:
            assert heuristic.timeline.iteration_time >= certificate.optimum * (1 - 1e-6)


@pytest.mark.parametrize("objective", RULES)
@pytest.mark.parametrize("kind", ["line", "lines", "table"])
def test_never_worse_than_the_seed_and_valid(objective, kind):
    rng = np.random.default_rng(10)
    for _ in range(4):
        workload = made(rng, 7, most=4000)
        pricing = Pricing.of(costs(workload)[kind])
        seed = random_plan(rng, workload, objective, 4)
        solution = search.improved(Question(workload, pricing, seed.objective), seed)
        plan, timeline = solution.require()
        plan.require_valid(workload)
        assert plan.objective == objective
        assert timeline == predict_timeline(workload, plan, pricing)
        assert timeline.iteration_time <= predict_timeline(workload, seed, pricing).iteration_time
        assert solution.lower_bound == objective_bound(workload, pricing, objective)
        assert solution.gap >= -1e-12


@pytest.mark.parametrize("objective", RULES)
def test_the_scheduler_is_never_worse_than_the_optimum_in_ready_order(objective):
    rng = np.random.default_rng(11)
    for _ in range(4):
        workload = made(rng, 8, most=4000)
        pricing = Pricing.of(line(workload))
        solution = SOLVERS["blocks"].solve(Question(workload, pricing, objective))
        base = optimal.solve(Question(workload, pricing)).plan.under(objective)
        assert solution.status is Status.HEURISTIC
        assert solution.timeline.iteration_time <= predict_timeline(workload, base, pricing).iteration_time
        assert solution == SOLVERS["blocks"].solve(Question(workload, pricing, objective))


def test_types_never_share_a_message():
    layers = [Layer(f"l{i}", 0.3, 0.5, 400, "float32" if i % 3 else "bfloat16") for i in range(6)]
    workload = Workload("mixed", tuple(layers))
    pricing = Pricing.of(AffineCost(((0.01, 0.002),)))
    for objective in (Objective(), OVERLAP):
        plan, _ = search.solve(Question(workload, pricing, objective)).require()
        plan.require_valid(workload)
    small = Workload("mixed", tuple(layers[:4]))
    plan, _ = block_choice.certified(small, pricing, OVERLAP, Limits(max_buckets=4)).solution.require()
    plan.require_valid(small)


def test_sizes_that_are_no_whole_elements():
    workload = Workload("odd", (Layer("a", 1, 1, 401), Layer("b", 1, 1, 203), Layer("c", 1, 1, 7)))
    plan, _ = search.solve(Question(workload, Pricing.of(AffineCost(((0.01, 0.004),))), OVERLAP)).require()
    plan.require_valid(workload)
    assert all(block.offset % 4 == 0 for bucket in plan.buckets for block in bucket.blocks)


@pytest.mark.parametrize("dtypes", [["float64"], ["float16"], ["float64", "float16"]])
def test_cuts_are_between_elements_of_any_type(dtypes):
    rng = np.random.default_rng(14)
    for _ in range(4):
        layers = [
            replace(layer, dtype=dtype, gradient_bytes=int(rng.integers(1, 500)) * element_bytes(dtype))
            for number, layer in enumerate(made(rng, 6).layers)
            for dtype in [dtypes[number * len(dtypes) // 6]]
        ]
        workload = Workload("typed", tuple(layers))
        for objective in (Objective(), OVERLAP):
            plan, _ = search.solve(Question(workload, Pricing.of(line(workload)), objective)).require()
            plan.require_valid(workload)
            plan.require_whole_elements(workload)
        laid = tape.laid_out(workload, range(6))
        half = [position + 1.0 for position in range(1, laid.total - 1, 7)]
        tape.plan_of(workload, laid, half).require_whole_elements(workload)
        # Pieces that lie on the tape in another order than in their tensor are cut as the tensor is.
        unit = element_bytes(dtypes[0])
        turned = replace(layers[-1], dtype=dtypes[0], gradient_bytes=20 * unit)
        alone = Workload("alone", (turned,))
        pieces = (Block(turned.name, 7 * unit, 13 * unit), Block(turned.name, 0, 7 * unit))
        plan = tape.plan_of(alone, tape.tape_of(Plan("alone", (Bucket(pieces),)))[0], [unit * 2.6, unit * 15.3])
        plan.require_valid(alone)
        plan.require_whole_elements(alone)


def test_elements_smaller_than_four_bytes_are_cut_exactly():
    workload = Workload("half", (Layer("a", 1, 1, 20, "float16"),))
    plan = tape.plan_of(workload, tape.laid_out(workload, [0]), [6.0])
    assert [bucket.size for bucket in plan.buckets] == [6, 14]


def test_limits_that_allow_no_plan_are_a_status():
    workload = workload_of([1.0, 2.0], [400, 400])
    pricing = Pricing.of(AffineCost(((0.1, 0.001),)))
    certificate = block_choice.certified(workload, pricing, Objective(), Limits(300, 2))
    assert certificate.solution.status is Status.INFEASIBLE
    assert certificate.solution.plan is None
    allowed = block_choice.certified(workload, pricing, Objective(), Limits(300, 3))
    assert max(bucket.size for bucket in allowed.solution.plan.buckets) <= 300
    problem = resize.problem_of(workload, pricing, Objective(), largest=300)
    laid = tape.laid_out(workload, [0, 1])
    assert resize.resized(problem, laid, [tape.Cut(0, 0, 200)]).status is Status.INFEASIBLE


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("kInfeasible", Status.INFEASIBLE),
        ("kUnboundedOrInfeasible", Status.INFEASIBLE),
        ("kTimeLimit", Status.NOT_CONVERGED),
        ("kSolveError", Status.NOT_CONVERGED),
    ],
)
def test_a_solver_that_stops_early_leaves_the_seed(status, expected, monkeypatch):
    workload = made(np.random.default_rng(12), 5)
    pricing = Pricing.of(line(workload))
    seed = contiguous_plan(workload, [2, 5]).under(OVERLAP)
    monkeypatch.setattr(highspy.Highs, "getModelStatus", lambda self: getattr(highspy.HighsModelStatus, status))
    solution = search.improved(Question(workload, pricing, seed.objective), seed)
    assert solution.status is expected
    assert solution.plan == seed
    assert solution.timeline == predict_timeline(workload, seed, pricing)


def test_a_solver_that_is_missing_leaves_the_seed(monkeypatch):
    workload = made(np.random.default_rng(13), 5)
    pricing = Pricing.of(line(workload))
    seed = contiguous_plan(workload, [2, 5]).under(OVERLAP)
    monkeypatch.setitem(sys.modules, "highspy", None)
    solution = search.improved(Question(workload, pricing, seed.objective), seed)
    assert solution.status is Status.NO_SOLVER
    assert solution.plan == seed


@pytest.mark.parametrize("strategy", ["replicated", "split"])
def test_the_programme_equals_scipy_s_on_dense_rows(strategy):
    """Each row of the docstring written out by hand, for random sequences and limits on sizes."""
    rng = np.random.default_rng(21)
    for _ in range(10):
        workload = made(rng, 6)
        problem = resize.problem_of(
            workload, Pricing.of(line(workload)), Objective(forward_overlap=True, strategy=strategy), 150
        )
        laid, cuts = tape.tape_of(contiguous_plan(workload, [2, 4, 6]))
        figures = resize.figures_of(problem, laid, [tape.Cut(cut.before, cut.before, cut.position) for cut in cuts])
        found = resize.solve_program(figures, 2.0)
        direct = by_hand(figures)
        assert (found.status is None) == direct.success
        assert not direct.success or found.value == pytest.approx(direct.fun, rel=1e-7)


def by_hand(figures: resize.Figures) -> OptimizeResult:
    """Unknowns: the positions from 0 to the total, the finishes, T."""
    jobs, ends = len(figures.bucket), len(figures.most)
    rows, most = [], []

    def at_least(factors: dict[int, float], bound: float) -> None:
        rows.append([-factors.get(column, 0.0) for column in range(ends + 2 + jobs)])
        most.append(-bound)

    for j, k in enumerate(figures.bucket):
        sent = {k: figures.slope[j], k + 1: -figures.slope[j], ends + 1 + j: 1.0}
        at_least(sent, figures.ready[j] + figures.latency[j])
        if j:
            at_least(sent | {ends + j: -1.0}, figures.latency[j])
        at_least({ends + 1 + j: -1.0, ends + 1 + jobs: 1.0}, figures.tail[j])
    for k in range(ends):
        at_least({k: -1.0, k + 1: 1.0}, figures.least[k])
        at_least({k: 1.0, k + 1: -1.0}, -figures.most[k])
    places = [(0, 0), *zip(figures.low, figures.high, strict=True), (figures.total, figures.total)]
    goal = [0.0] * (ends + 1 + jobs) + [1.0]
    return linprog(goal, rows, most, bounds=[*places, *[(None, None)] * (jobs + 1)])


def test_a_choice_that_runs_out_of_time_is_a_status_and_no_false_bound():
    workload = made(np.random.default_rng(14), 6)
    pricing = Pricing.of(line(workload))
    certificate = block_choice.certified(workload, pricing, OVERLAP, Limits(max_buckets=4), seconds=1e-3)
    assert certificate.solution.status is Status.NOT_CONVERGED
    assert not certificate.proven
    best = block_choice.certified(workload, pricing, OVERLAP, Limits(max_buckets=4))
    assert certificate.bound <= best.optimum * (1 + 1e-6)


@pytest.mark.parametrize(
    ("objective", "effects"),
    [(Objective(2, True), Effects()), (OVERLAP, Effects(compute_slowdown=0.2)), (OVERLAP, Effects(hook_time=0.1))],
)
def test_nonlinear_rules_are_refused(objective, effects):
    workload = made(np.random.default_rng(15), 5)
    pricing = Pricing(Pricing.of(line(workload)).costs, 2, 1, effects)
    solution = search.solve(Question(workload, pricing, objective))
    assert solution.status is Status.NOT_LINEAR
    plan, timeline = solution.require()
    assert timeline == predict_timeline(workload, plan, pricing)
    assert block_choice.certified(workload, pricing, objective).solution.plan is None


def test_priorities_and_releases_are_left_alone():
    workload = made(np.random.default_rng(16), 4)
    pricing = Pricing.of(line(workload))
    seed = Plan(workload.name, contiguous_plan(workload, [2, 4]).buckets, forward_overlap=True, credit=100)
    solution = search.improved(Question(workload, pricing, seed.objective), seed)
    assert (solution.plan, solution.status) == (seed, Status.NOT_LINEAR)


def test_large_instances_and_empty_ones():
    workload = made(np.random.default_rng(17), 20)
    pricing = Pricing.of(line(workload))
    assert block_choice.certified(workload, pricing, OVERLAP).solution.status is Status.TOO_LARGE
    empty = workload_of([1.0], [0])
    plan, timeline = search.solve(Question(empty, pricing, OVERLAP)).require()
    assert (plan.buckets, timeline.iteration_time) == ((), 1.0)


def test_a_known_gain_of_cutting_a_tensor():
    """Two equal layers and no start-up. Layer b is ready first and a is wanted first: with b whole, a is held up; with
    b cut where a becomes ready, nothing is."""
    layers = (Layer("a", 4.0, 1.0, 400), Layer("b", 1.0, 1.0, 400))
    workload = Workload("two", layers)
    pricing = Pricing.of(AffineCost(((Fraction(0), Fraction(1, 200)),)))
    whole = contiguous_plan(workload, [1, 2]).under(OVERLAP)
    assert predict_timeline(workload, whole, pricing).iteration_time == 10
    found = search.solve(Question(workload, pricing, OVERLAP))
    assert found.timeline.iteration_time == pytest.approx(9, rel=1e-9)
