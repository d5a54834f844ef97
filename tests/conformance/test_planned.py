"""The solver ``planned`` under every set of rules."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest

import osfmodel as osf
from osfmodel.cost import AffineCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.plan import Objective, contiguous_plan
from osfmodel.solve import SOLVERS, Question, Status
from osfmodel.solve.bounds import objective_bound
from osfmodel.targets.named_plans import make_plan, plans_for
from tests.conftest import workload_of
from tests.exhaustive import all_ends
from tests.problems import COST_MAKERS, affine, coarse_table, tiny_workload

pytestmark = pytest.mark.usefixtures("ideal")

RULES = [Objective(*rule) for rule in product((1, 2), (False, True), ("replicated", "split"))]


def planned(*question):
    """The solution of a question given as its parts."""
    return SOLVERS["planned"].solve(Question(*question))


@pytest.mark.covering
@pytest.mark.parametrize("objective", RULES, ids=str)
@pytest.mark.parametrize("make_cost", COST_MAKERS)
def test_valid_timed_by_the_engine_above_the_bound_and_no_worse_than_runs_in_order(make_cost, objective):
    rng = np.random.default_rng(71)
    for _ in range(4):
        workload, pricing = tiny_workload(rng, 20), Pricing.of(make_cost(rng))
        solution = planned(workload, pricing, objective)
        plan, timeline = solution.require()
        plan.require_valid(workload)
        assert objective.permits(plan.objective)
        assert timeline == predict_timeline(workload, plan, pricing)
        assert solution.lower_bound == objective_bound(workload, pricing, objective)
        assert solution.gap >= -1e-9
        rules = replace(objective, channels=1, strategy="replicated")
        runs = [contiguous_plan(workload, ends).under(rules) for ends in all_ends(len(workload.gradients))]
        in_order = min(predict_timeline(workload, run, pricing).iteration_time for run in runs)
        assert timeline.iteration_time <= in_order * (1 + 1e-9)


LISTED = [
    ("googlenet-k80", "k80-10gbe-ring", 8, 1, "replicated"),
    ("alexnet-pipedream", "k80-10gbe-ring", 8, 2, "split"),
    ("alexnet-pipedream", "v100-10gbe", 64, 4, "replicated"),
    ("googlenet-k80", "emulated-2x5gbit", 2, 1, "replicated"),
    pytest.param("googlenet-k80", "k80-10gbe-ring", 8, 2, "split", marks=pytest.mark.long),
    pytest.param("resnet50-v100", "v100-10gbe", 32, 2, "replicated", marks=pytest.mark.long),
    pytest.param("resnet50-v100", "v100-10gbe", 32, 4, "replicated", marks=pytest.mark.long),
    pytest.param("resnet50-v100", "v100-10gbe", 64, 2, "replicated", marks=pytest.mark.long),
    pytest.param("resnet50-v100", "v100-10gbe", 64, 4, "replicated", marks=pytest.mark.long),
    pytest.param("resnet50-v100", "emulated-2x5gbit", 2, 1, "replicated", marks=pytest.mark.long),
]
"""Workload, cluster, workers, channels, strategy. The emulated one copies, and keeps two in flight per channel."""


@pytest.mark.covering
@pytest.mark.parametrize("overlap", [False, True], ids=["barrier", "overlap"])
@pytest.mark.parametrize(("workload", "cluster", "workers", "channels", "strategy"), LISTED)
def test_no_plan_that_is_listed_is_faster(workload, cluster, workers, channels, strategy, overlap):
    """``planned`` is the fastest of all plans that ``osf predict`` lists at one executor's prices.

    Under plain rules ``optimal`` is. Rules that permit more make nothing slower.
    """
    objective = Objective(channels, overlap, strategy)
    subject = osf.load_workload(workload), osf.load_cluster(cluster), workers
    names = [*plans_for(objective), "cap:best", "planned"]
    predictions = osf.compare(*subject, list(dict.fromkeys(names)), asdict(objective)).predictions
    pricing = pricing_of(*subject[1:]).for_rules(objective)
    times = {one.name: predict_timeline(subject[0], one.plan, pricing).iteration_time for one in predictions}
    best = times.pop("planned")
    assert best <= min(times.values()) * (1 + 1e-12), times
    if objective.plain:
        assert times["optimal"] <= min(times.values()) * (1 + 1e-12), times
    fewer = make_plan("planned", subject[0], pricing, Objective())
    assert best <= predict_timeline(subject[0], fewer, pricing).iteration_time * (1 + 2e-6)


def test_a_split_that_costs_more_is_not_forced():
    """Reduce-scatter and all-gather dearer than the all-reduce: permitted, they are left alone, and the bound holds."""
    workload, line = workload_of([0.01, 0.02, 0.03], [10**7, 10**6, 2 * 10**7]), AffineCost(((1e-3, 1e-9),))
    dear = AffineCost(((5e-3, 2e-9),))
    pricing = Pricing({"all_reduce": line, "reduce_scatter": dear, "all_gather": dear})
    for objective in (Objective(1, False, "split"), Objective(2, True, "split")):
        solution = planned(workload, pricing, objective)
        assert not solution.plan.split
        assert solution.gap >= -1e-9


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_cuts_lie_between_elements(dtype):
    base = osf.load_workload("googlenet-k80")
    scale = {"float64": 2, "float32": 1, "bfloat16": 0.5}[dtype]
    layers = tuple(
        replace(layer, dtype=dtype if number % 3 else "float32",
                gradient_bytes=int(layer.gradient_bytes * (scale if number % 3 else 1)))
        for number, layer in enumerate(base.layers)
    )  # fmt: skip
    workload = replace(base, layers=layers)
    dtypes = {layer.name: layer.dtype for layer in layers}
    pricing = pricing_of(osf.load_cluster("k80-10gbe-ring"), 32)
    for name in ("planned", "byte-scheduler", "us-byte"):
        plan = SOLVERS[name].solve(Question(workload, pricing, Objective(forward_overlap=True))).require_plan()
        plan.require_valid(workload)
        offsets = [(block.offset, dtypes[block.layer]) for bucket in plan.buckets for block in bucket.blocks]
        assert all(offset % element_bytes(kind) == 0 for offset, kind in offsets)


@pytest.mark.parametrize(
    "workers", [8, 64, 512, *(pytest.param(one, marks=pytest.mark.long) for one in (16, 32, 128, 256))]
)
def test_googlenet_on_ten_gigabit_is_at_the_bound(workers):
    """Next-iteration overlap, one channel: a price on one line is planned exactly, but for whole elements."""
    workload, pricing = osf.load_workload("googlenet-k80"), pricing_of(osf.load_cluster("k80-10gbe-ring"), workers)
    solution = planned(workload, pricing, Objective(forward_overlap=True))
    assert -1e-12 <= solution.gap <= 1e-6


def test_the_same_question_gets_the_same_answer():
    rng = np.random.default_rng(72)
    workload, pricing = tiny_workload(rng, 20), Pricing.of(coarse_table(rng))
    for objective in RULES:
        assert planned(workload, pricing, objective) == planned(workload, pricing, objective)


def test_dtypes_and_nothing_to_send():
    rng = np.random.default_rng(73)
    mixed = workload_of([float(i + 1) for i in range(6)], rng.integers(1, 50, 6).tolist(), ["a", "b"] * 3)
    empty = workload_of([1.0], [0])
    for objective in RULES:
        planned(mixed, Pricing.of(affine(rng)), objective).require()[0].require_valid(mixed)
        solution = planned(empty, Pricing.of(affine(rng)), objective)
        assert solution.require()[1].iteration_time == empty.compute_time
        assert solution.status is Status.OPTIMAL


def test_free_communication():
    workload = workload_of([1.0, 2.0], [10, 20])
    solution = planned(workload, Pricing.of(AffineCost(((0.0, 0.0),))), Objective(forward_overlap=True))
    assert solution.require()[1].iteration_time == workload.compute_time


@pytest.mark.parametrize("objective", RULES, ids=str)
def test_effects_only_add_time(objective):
    """The bound holds with all effects on, and a launch latency counts in it where there is one channel."""
    rng = np.random.default_rng(74)
    effects = osf.Effects(0.5, 0.1, 0.01, 0.01, 0.01, 0.2, 0.1)
    for _ in range(2):
        workload, costs = tiny_workload(rng, 20), Pricing.of(affine(rng)).costs
        solution = planned(workload, Pricing(costs, workers=4, effects=effects), objective)
        assert solution.gap >= 0
        assert solution.lower_bound >= objective_bound(workload, Pricing(costs), objective)


@pytest.mark.parametrize("channels", [1, pytest.param(2, marks=pytest.mark.long)])
def test_permitting_a_split_never_slows_the_executors_plan(channels):
    """Permitting a split never slows a plan: the executor's fixed order may cost a split plan more than it gains."""
    workload, cluster = osf.load_workload("googlenet-k80"), osf.load_cluster("v100-10gbe")
    whole, split = (
        osf.tune(workload, cluster, 64, "runtime", objective=Objective(channels, strategy=strategy)).outcomes[0]
        for strategy in ("replicated", "split")
    )
    assert split.tuned_time <= whole.tuned_time * (1 + 1e-9)
