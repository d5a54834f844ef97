"""DDP's bucket rule against layouts seen in real runs, and the searches for the best caps against brute force."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import osfmodel as osf
from osfmodel import PlanError, cost_of
from osfmodel.cost import AffineCost
from osfmodel.plan import contiguous_ends, contiguous_plan
from osfmodel.recursion import predict_timeline
from osfmodel.solve.contiguous import finish
from osfmodel.targets import ddp, ddp_caps
from tests.conftest import gradients, workload_of
from tests.theory.test_merge import affine, coarse_table, min_of_affine

MIB = 2**20


def resnet18(data_folder, bytes_per_element):
    """Sizes in the order in which autograd really produces them."""
    with open(data_folder / "layer_profiles/shapes/resnet18.csv", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["ready_order"]))
    sizes = [bytes_per_element * int(row["elements"]) for row in rows]
    return gradients([float(i) for i in range(len(sizes))], sizes)


@pytest.mark.parametrize("number", range(4))
def test_layouts_of_real_runs(data_folder, number):
    """Four layouts recorded by others, with their own caps, to the byte."""
    entries = json.loads((data_folder / "scaling/issues/ddp_bucket_layouts.json").read_text())
    assert len(entries) == 4
    entry = entries[number]
    width = 2 if "bf16" in entry["model"] else 4
    if "resnet50" in entry["model"]:
        found = osf.load_workload("resnet50-v100").gradients
    else:
        found = resnet18(data_folder, width)
    expected = entry.get("allreduce_bytes") or [width * elements for elements in entry["allreduce_elements"]]
    limits = [entry.get("first_bucket_mb", 1) * MIB, entry["bucket_cap_mb"] * MIB]
    layout = ddp.bucket_layout(found, limits)
    assert [sum(found.sizes[i] for i in bucket) for bucket in layout] == expected


def test_a_bucket_closes_when_it_reaches_its_limit():
    found = gradients([1.0] * 5, [30, 70, 100, 99, 1])
    assert ddp.bucket_layout(found, [100]) == [[0, 1], [2], [3, 4]]
    assert ddp.bucket_layout(found, [30, 1000]) == [[0], [1, 2, 3, 4]]
    assert ddp.bucket_layout(found, [1]) == [[0], [1], [2], [3], [4]]


def test_each_dtype_is_walked_separately():
    found = gradients([1.0] * 6, [50, 50, 50, 50, 50, 50], ["f", "b", "f", "b", "f", "b"])
    assert ddp.bucket_layout(found, [100]) == [[0, 2], [1, 3], [4], [5]]
    assert ddp.bucket_layout(found, [50, 100]) == [[0], [1], [2, 4], [3, 5]]


def test_every_contiguous_plan_is_realised_exactly():
    rng = np.random.default_rng(1)
    for _ in range(200):
        count = int(rng.integers(1, 30))
        workload = workload_of(np.cumsum(rng.exponential(1, count)).tolist(), rng.integers(1, 10**7, count).tolist())
        ends = (*sorted(set(rng.integers(1, count, 5).tolist()) - {count}), count) if count > 1 else (1,)
        plan, cost = contiguous_plan(workload, ends), AffineCost(((1.0, 1e-6),))
        assert ddp.realise(ddp.project(plan, workload, cost), workload, cost) == plan


def test_out_of_order_and_mixed_plans_are_refused():
    workload = workload_of([1.0, 2.0], [10, 20], ["f", "b"])
    cost = AffineCost(((1.0, 0.0),))
    with pytest.raises(PlanError, match="mixes b"):
        ddp.project(contiguous_plan(workload, [2]), workload, cost)
    workload = workload_of([1.0, 2.0], [10, 20])
    plan = contiguous_plan(workload, [1, 2])
    with pytest.raises(PlanError, match="out of order"):
        ddp.project(osf.Plan(plan.workload, plan.buckets[::-1]), workload, cost)


def layout_finish(found, limits, cost):
    ends, position = [], 0
    for bucket in ddp.bucket_layout(found, limits):
        position += len(bucket)
        ends.append(position)
    return finish(ends, found, cost)


@pytest.mark.parametrize("make_cost", [affine, min_of_affine, coarse_table])
def test_best_caps_equal_brute_force(make_cost):
    """All caps, and all pairs of first cap and cap, tried one by one with the rule itself."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        count = int(rng.integers(1, 9))
        sizes = (1 + rng.pareto(1.0, count) * 10).astype(int).tolist()
        workload, cost = workload_of((0.01 + np.cumsum(rng.exponential(1, count))).tolist(), sizes), make_cost(rng)
        found = workload.gradients
        everything = range(1, sum(sizes) + 1)
        single = min(layout_finish(found, [cap], cost) for cap in everything)
        best = ddp_caps.search_caps(workload, cost)
        assert layout_finish(found, [best.cap], cost) == pytest.approx(single, rel=1e-9)
        firsts = [sum(sizes[: i + 1]) for i in range(count)]
        caps = ddp_caps.candidate_caps(found).tolist()
        pair = min(layout_finish(found, [first, cap], cost) for first in firsts for cap in caps)
        assert layout_finish(found, best.pair, cost) == pytest.approx(pair, rel=1e-9)
        assert best.pair_exhaustive


def test_between_two_candidate_caps_no_layout_changes():
    found = gradients([1.0] * 6, [7, 3, 12, 5, 5, 20])
    caps = ddp_caps.candidate_caps(found).tolist()
    for cap in range(1, 60):
        above = next((candidate for candidate in caps if candidate >= cap), caps[-1])
        assert ddp.bucket_layout(found, [cap]) == ddp.bucket_layout(found, [above])


def test_best_whole_mib_cap():
    workload, cost = osf.load_workload("resnet50-v100"), cost_of(osf.load_cluster("v100-10gbe"), 64)
    found = workload.gradients
    best = ddp_caps.search_caps(workload, cost)
    by_hand = min(layout_finish(found, [cap * MIB], cost) for cap in range(1, 99))
    assert layout_finish(found, [best.whole_mib * MIB], cost) == pytest.approx(by_hand, rel=1e-9)


def test_large_workloads_say_that_pairs_were_thinned_out():
    rng = np.random.default_rng(4)
    workload = workload_of(np.cumsum(rng.exponential(1e-4, 400)).tolist(), rng.integers(1, 10**6, 400).tolist())
    cost = AffineCost(((1e-3, 1e-9),))
    best = ddp_caps.search_caps(workload, cost)
    assert not best.pair_exhaustive
    pair = layout_finish(workload.gradients, best.pair, cost)
    assert pair <= layout_finish(workload.gradients, [best.cap], cost) * (1 + 1e-9)


def test_tuning_reports_the_plan_that_ddp_forms():
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    tuning = osf.tune(workload, cluster, 64)
    limits = [int(cap * MIB) for cap in tuning.config["bucket_cap_mb_list"]]
    layout = ddp.bucket_layout(workload.gradients, limits)
    assert contiguous_ends(tuning.plan, workload) == tuple(np.cumsum([len(bucket) for bucket in layout]).tolist())
    cost = cost_of(cluster, 64)
    assert tuning.outcomes[0].tuned_time == predict_timeline(workload, tuning.plan, cost).iteration_time
