"""Error bands: quantiles in which groups weigh the same, doubts that can be priced, and where there is no band."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.cost import AffineCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.band_values import (
    LEVELS,
    Distances,
    bands_document,
    bundled_bands,
    bundled_distances,
    decode_bands,
)
from osfmodel.engine.bands import (
    COUNTED,
    GLOO,
    LEAST,
    LEAST_FAR,
    MOST_WORKERS,
    NODE,
    NODES,
    REPLICAS,
    SHARDED_GLOO,
    SHARDED_NODES,
    JudgedRun,
    around,
    band_of,
    beyond,
    distances_for,
    distances_of,
    extremes,
    incomparable,
    kind_of,
    weighed,
)
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import encode
from osfmodel.targets.named_plans import make_plan

WORKLOAD = osf.load_workload("resnet50-v100")


def priced(words, workers):
    pricing = pricing_of(osf.load_cluster(words), workers)
    plan = make_plan("ddp", WORKLOAD, pricing)
    return plan, predict_timeline(WORKLOAD, plan, pricing), pricing


def runs(source, group, errors, kind=NODES):
    """Runs that took 1 + error times as long as predicted."""
    return [JudgedRun(source, group, kind, 1 + error, 1.0, 0.9, 1.1) for error in errors]


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.95, 1.0])
def test_a_weighed_quantile_is_the_smallest_value_with_enough_weight(part):
    values, weights = [3.0, 1.0, 2.0, 5.0], [0.1, 0.4, 0.3, 0.2]
    found = weighed(values, weights, part)
    below = sum(weight for value, weight in zip(values, weights, strict=True) if value <= found)
    less = sum(weight for value, weight in zip(values, weights, strict=True) if value < found)
    assert below >= part - 1e-9
    assert less < part


def test_a_source_with_many_runs_counts_no_more_than_one_with_few():
    few = [*runs("a", "a", [0.0] * 3), *runs("b", "b", [0.3] * 3)]
    many = [*runs("a", "a", [0.0] * 3000), *runs("b", "b", [0.3] * 3)]
    assert distances_of(few)[0].above == distances_of(many)[0].above


def test_sources_of_a_group_share_its_weight_and_are_left_out_together():
    judged = [*runs("a1", "a", [0.0, 0.1]), *runs("a2", "a", [0.2]), *runs("b", "b", [0.5])]
    found = {one.without: one for one in distances_of(judged)}
    assert set(found) == {"", "a", "b"}
    assert found["a"].sources == ("b",)
    assert found["b"].sources == ("a1", "a2")
    assert found["a"].above[0] == pytest.approx(math.log(1.5 / 1.1))
    assert distances_for(NODES, found.values(), "another") == found[""]
    assert distances_for(GLOO, found.values()) is None


def test_tails_are_those_of_a_sample_that_lacks_one_group():
    """With one group half of the stated tail is left for the group that is not there: 5 % becomes 2.5 %."""
    judged = runs("a", "a", [number / 100 for number in range(100)])
    high = distances_of(judged)[0].above[LEVELS.index(0.9)]
    assert high == pytest.approx(math.log((1 + 0.97) / 1.1))


def test_counted_kinds_have_one_distance_for_both_ends_that_narrows_doubts_that_are_too_wide():
    judged = runs("a", "a", [number / 1000 - 0.05 for number in range(100)], REPLICAS)  # all inside of 0.9 to 1.1
    found = distances_of(judged)[0]
    assert found.below == found.above < (0.0,) * len(LEVELS)
    held = [around(1.0, 0.9, 1.1, found) for _ in judged]
    assert sum(band.low <= run.measured <= band.high for band, run in zip(held, judged, strict=True)) == 90


def test_a_counted_workload_has_the_band_of_counted_runs_and_no_remark_on_others():
    cluster = osf.load_cluster("nccl:h100x8,400Gbps")
    found = osf.predict(osf.load_workload("llama3.2-1b:h100,seq512"), cluster, "zero-1", 64)
    assert found.band.kind == COUNTED
    assert not any("nothing comparable" in note for note in found.notes)
    profiled = osf.predict(WORKLOAD, cluster, "zero-1", 64)
    assert profiled.band.kind == f"{NODES} (nearest)"


def test_a_band_adds_distances_to_the_doubts_and_holds_the_prediction():
    distances = Distances(NODES, "", (0.1,) * len(LEVELS), (0.2,) * len(LEVELS), 9, ("a",))
    band = around(2.0, 1.8, 2.4, distances)
    assert (band.low, band.high) == pytest.approx((1.8 * math.exp(-0.1), 2.4 * math.exp(0.2)))
    assert (band.below, band.above) == pytest.approx((0.9 * math.exp(-0.1) - 1, 1.2 * math.exp(0.2) - 1))
    assert band.half_width == pytest.approx((band.above - band.below) / 2)
    narrow = around(2.0, 2.0, 2.0, distances._replace(below=(-0.5,) * len(LEVELS), above=(-0.5,) * len(LEVELS)))
    assert (narrow.low, narrow.high) == pytest.approx((2.0 / (1 + LEAST), 2.0 * (1 + LEAST)))


@pytest.mark.usefixtures("ideal")
def test_doubtful_prices_widen_by_what_they_change_and_doubtful_times_by_all():
    plan, timeline, pricing = priced("ring:50us,10Gbps", 16)
    sure = replace(pricing, uncertainty=0.0, uncertainty_large=0.0)
    assert extremes(WORKLOAD, plan, timeline, sure) == (timeline.iteration_time,) * 2
    fast, slow = extremes(WORKLOAD, plan, timeline, pricing)
    dearer = predict_timeline(WORKLOAD, plan, pricing.slower(1 + pricing.uncertainty_of(plan)))
    assert slow == dearer.iteration_time > timeline.iteration_time > fast
    doubtful = replace(WORKLOAD, doubt=0.5)
    free = replace(sure, costs={name: AffineCost(((0.0, 0.0),)) for name in sure.costs})
    idle = predict_timeline(WORKLOAD, plan, free)
    assert extremes(doubtful, plan, idle, free)[1] == pytest.approx(1.5 * idle.iteration_time)


def test_usual_effects_make_a_prediction_doubtful_by_a_part_of_what_they_add():
    cluster = osf.load_cluster("nccl:v100x8")
    usual, ideal = pricing_of(cluster, 8, WORKLOAD), pricing_of(cluster, 8)
    assert usual.usual
    assert not ideal.usual
    seen, _ = usual.loaded(WORKLOAD)
    assert seen.doubt == pytest.approx((seen.compute_time / WORKLOAD.compute_time - 1) / 2)
    assert seen.doubt > 0.01
    assert ideal.loaded(WORKLOAD) == (WORKLOAD, ideal)


def test_sizes_and_workers_beyond_those_measured_add_doubt():
    plan, _, pricing = priced("azure-a100-hdr", 32)
    assert beyond(plan, pricing) == 0
    many = replace(pricing, workers=2 * MOST_WORKERS[NODES])
    assert beyond(plan, many) == pytest.approx(0.1)
    largest = pricing.cost().measured_range[1]
    (bucket,) = make_plan("single", WORKLOAD, pricing).buckets
    huge = replace(bucket, blocks=(replace(bucket.blocks[0], bytes=8 * largest),))
    assert beyond(replace(plan, buckets=(huge,)), pricing) == pytest.approx(0.3)


def test_kinds_of_set_up_are_learned_from_apart():
    plan, _, node = priced("nccl:v100x8", 8)
    nodes = priced("nccl:v100x8,100Gbps/node,ib", 16)[2]
    assert kind_of(plan, node) == NODE
    assert kind_of(plan, nodes) == NODES
    assert kind_of(plan, pricing_of(osf.load_cluster("emulated-4x1gbit"), 4)) == GLOO
    for name in ("fsdp2", "hsdp"):
        sharded = make_plan(name, WORKLOAD, nodes)
        assert [kind_of(sharded, pricing) for pricing in (node, nodes)] == [NODE, SHARDED_NODES]
    assert {one.kind for one in bundled_distances()} == {NODE, NODES, GLOO, SHARDED_GLOO, SHARDED_NODES, REPLICAS}


def test_sharded_plans_on_several_nodes_have_the_band_of_sharded_runs():
    cluster = osf.load_cluster("nccl:a100x8,200Gbps,ib")
    for name in ("fsdp2", "hsdp"):
        band = osf.predict(WORKLOAD, cluster, name, 32).band
        assert band.kind == SHARDED_NODES
        assert set(band.sources) == {"mosaicml-2023", "modalities-leonardo"}
        assert osf.predict(WORKLOAD, cluster, name, 512).band.half_width > band.half_width
    gloo = osf.predict(WORKLOAD, osf.load_cluster("emulated-4x1gbit"), "fsdp2", 4)
    assert gloo.band.kind == SHARDED_GLOO
    assert gloo.band.above > osf.predict(WORKLOAD, osf.load_cluster("emulated-4x1gbit"), "ddp", 4).band.above
    assert "more than 256 GPUs" in " ".join(osf.predict(WORKLOAD, cluster, "fsdp2", 1024).notes)


@pytest.mark.parametrize(
    ("plan", "cluster", "workers", "kind", "reason"),
    [
        ("fsdp2", "nccl:a100x8", 8, NODE, "fully-sharded on one node"),
        ("zero-3", "emulated-4x1gbit", 4, SHARDED_GLOO, "the strategy zero-3"),
        ("zero-1", "emulated-4x1gbit", 4, GLOO, "the strategy zero-1"),
        ("zero-1", "nccl:a100x8,200Gbps,ib", 16, NODES, "the strategy zero-1"),
        ("zero-2", "nccl:a100x8,200Gbps,ib", 16, NODES, "the strategy zero-2"),
        ("zero-3", "nccl:a100x8,200Gbps,ib", 16, SHARDED_NODES, "the strategy zero-3"),
        ("fsdp1", "nccl:a100x8,200Gbps,ib", 16, SHARDED_NODES, "the strategy flat-sharded"),
        ("distributed-optimizer", "nccl:a100x8,200Gbps,ib", 16, NODES, "the strategy distributed-optimizer"),
        ("ddp", "nccl:a100x8,200Gbps,ib", 512, NODES, "no runs on more than 64 GPUs"),
    ],
)
def test_strategies_that_were_not_measured_have_the_band_of_the_nearest_runs_wider(
    plan, cluster, workers, kind, reason
):
    found = osf.predict(WORKLOAD, osf.load_cluster(cluster), plan, workers)
    question = found.bound.question
    assert kind_of(found.plan, question.pricing) == kind
    assert found.band.kind == f"{kind} (nearest)"
    fast, slow = extremes(question.workload, found.plan, found.timeline, question.pricing)
    near = around(found.iteration_time, fast, slow, distances_for(kind, bundled_distances()))
    assert found.band.low < near.low
    assert found.band.high > near.high
    assert found.band.low <= fast * math.exp(-LEAST_FAR) + 1e-12
    assert found.band.high >= slow * math.exp(LEAST_FAR) - 1e-12
    (said,) = (note for note in found.notes if note.startswith("wide error band: nothing comparable was measured"))
    assert reason in said
    assert f"runs on {kind} are nearest" in said


@pytest.mark.parametrize("plan", ["zero-1", "horovod", "ddp"])
def test_computation_that_is_twice_as_fast_makes_the_fast_end_so_whatever_waits_for_a_clock(plan):
    """Release times come after gradients, which are ready earlier and later with the computation."""
    cluster = osf.load_cluster("nccl:a100x8,200Gbps,ib")
    found = osf.predict(WORKLOAD, cluster, plan, 16)
    assert any(bucket.release_time for bucket in found.plan.buckets) == (plan != "ddp")
    doubtful, free = replace(WORKLOAD, doubt=1.0), Pricing.free(16)
    timeline = predict_timeline(WORKLOAD, found.plan, free)
    fast, slow = extremes(doubtful, found.plan, timeline, free)
    assert fast == pytest.approx(timeline.iteration_time / 2, rel=0.01)
    assert slow > 1.9 * timeline.iteration_time


def test_a_strategy_of_one_source_has_no_band():
    plan, _, pricing = priced("nccl:a100x8,200Gbps,ib", 16)
    owners = replace(plan, strategy="zero-1-owners")
    assert incomparable(owners, pricing) == "no plans of the strategy zero-1-owners but those of one source"


def test_there_is_no_band_where_nothing_comparable_was_measured():
    plan, timeline, pricing = priced("nccl:h100x8,400Gbps,ib", 16)
    assert band_of(WORKLOAD, plan, timeline, pricing) is not None
    split = osf.predict(WORKLOAD, osf.load_cluster("nccl:h100x8,400Gbps,ib"), "us-byte", 16)
    assert split.band is None
    assert "nothing comparable was measured" in " ".join(split.notes)
    assert osf.predict(WORKLOAD, osf.load_cluster("v100-10gbe"), "ddp", 1).band is None


def test_the_file_of_bands_can_be_read_back_and_a_bad_one_is_refused():
    known = bundled_bands()
    assert decode_bands(encode(bands_document(*known)).encode()) == known
    with pytest.raises(DataError, match=r"missing required field 'below' at '.cells\[0\]'"):
        decode_bands(b'{"schema_version": 1, "kind": "bands", "cells": [{"setup": "gloo"}]}')


def test_effects_that_are_left_out_are_doubtful():
    """The ideal of a GPU job may be as slow as with the usual effects; a CPU's profile as well, on GPUs."""
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("nccl:v100x8,100Gbps/node,ib")
    usual = osf.predict(workload, cluster, "ddp", 16)
    for job in (workload, replace(workload, source=osf.Source(gpu="none (CPU)"))):
        ideal = osf.predict(job, replace(cluster, usual_effects=False), "ddp", 16)
        assert ideal.iteration_time < 0.95 * usual.iteration_time
        assert ideal.band.high > usual.iteration_time
        assert ideal.band.low > 0.9 * ideal.iteration_time
