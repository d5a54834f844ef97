"""Lower bounds of every target and every named plan whose strategy shards: no time is below them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import osfmodel as osf
from osfmodel import CONFIG_TARGETS, CostError, Layer, Workload
from osfmodel.cost.clusters import pricing_of
from osfmodel.entities.plan import REPLICATED, SPLIT
from osfmodel.planning.tuning.task import TuningProblem
from osfmodel.solve.bounds import plan_bound
from osfmodel.targets.named_plans import FAMILIES, NAMED_PLANS, make_plan, named_plan
from tests.draws import examples

SHARDING = [name for name, target in CONFIG_TARGETS.items() if target.objective.strategy not in (REPLICATED, SPLIT)]
PLANS = [
    name
    for name in (*NAMED_PLANS, *(name for family in FAMILIES.values() for name in family.examples))
    if named_plan(name).objective.strategy not in (REPLICATED, SPLIT)
]
CLUSTER = "nccl:v100x4,25Gbps"


def drawn(rng):
    """A model of blocks with or without parameters outside them, in single or mixed precision."""
    blocks, outside = int(rng.integers(1, 7)), int(rng.random() < 0.6)
    scale = float(rng.choice([0.1, 1, 10]))
    names = [f"layers.{block}.{part}.weight" for block in range(blocks) for part in ("up", "down")]
    sizes = [4 * int(size) for size in rng.pareto(1.0, len(names)) * 300_000 + 1]
    ends = [4 * outside * int(size) for size in rng.pareto(1.0, 2) * 300_000 + 1]
    layers = [
        Layer(name, *(rng.uniform(0.1e-3, 2e-3, 2) * scale).tolist(), size)
        for name, size in zip(["embedding.weight", *names, "head.weight"], [ends[0], *sizes, ends[1]], strict=True)
    ]
    mixed = str(rng.choice(["", "bfloat16"]))
    return Workload("drawn", tuple(layers), update_time=1e-3 * scale, computed_in=mixed)


def cases():
    """Workloads, and the prices between two nodes or more."""
    for seed in range(examples(3)):
        rng = np.random.default_rng(seed)
        yield drawn(rng), int(rng.choice([8, 16, 96]))


@pytest.mark.parametrize("name", SHARDING)
def test_no_settings_of_a_target_are_faster_than_its_bound(name):
    target, cluster = CONFIG_TARGETS[name], osf.load_cluster(CLUSTER)
    for workload, workers in cases():
        stock = pricing_of(cluster, workers, workload)
        for pricing in (stock, replace(stock, effects=osf.Effects())):
            task = TuningProblem(workload, target, (pricing,), objective=target.objective)
            ((plan, _),) = task.optima()
            found = task.from_plan(plan, task.pricings[0])
            (bound,) = task.bounds(found)
            for knobs in (found, task.complete(target.convert.default_knobs())):
                assert 0 < bound <= task.times(knobs)[0] * (1 + 1e-12)


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_priced_like_the_name_that_makes_it(name):
    """Over gloo, where the library runs several collectives at once, and some executors send one at a time."""
    workload, cluster = osf.load_workload("googlenet-k80"), osf.load_cluster("emulated-sparse-2x1gbit")
    try:
        (named,) = osf.compare(workload, cluster, 2, [name]).predictions
    except CostError:
        pytest.skip("no prices inside nodes")
    assert osf.predict(workload, cluster, named.plan, 2).iteration_time == named.iteration_time


def test_the_update_of_other_sharded_strategies_is_split():
    workload, pricing = drawn(np.random.default_rng(1)), osf.pricing_of(osf.load_cluster(CLUSTER), 8)
    plan = make_plan("fsdp2", workload, pricing)
    bound = plan_bound(workload, replace(plan, strategy="another"), pricing)
    loaded, _ = pricing.loaded(workload)
    assert bound == pytest.approx(loaded.compute_time - loaded.update_time * 7 / 8)


@pytest.mark.parametrize("name", PLANS)
def test_no_named_plan_is_faster_than_its_bound(name):
    cluster = osf.load_cluster(CLUSTER)
    for workload, workers in cases():
        (prediction,) = osf.compare(workload, cluster, workers, [name]).predictions
        assert 0 < prediction.lower_bound <= prediction.iteration_time * (1 + 1e-12)
