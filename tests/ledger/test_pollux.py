"""AdaptDL's runs: what is reached in each file, what is fitted, and that nothing else is looked at."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from osfmodel import Layer, Workload
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE, AffineCost
from osfmodel.engine.recursion import predict_timeline
from osfmodel.entities.effects import CITED_SLOWDOWN, NO_EFFECTS, Effects
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.plan import in_one, one_by_one
from osfmodel.entities.units import MIB
from osfmodel.ledger.recipe import from_input, with_compute_time
from osfmodel.ledger.sources import pollux
from osfmodel.targets.named_plans import make_plan
from tests.ledger.test_leaks import leaks

IMAGENET = load_measurements("pollux-imagenet")
CIFAR10 = load_measurements("pollux-cifar10")
SPEECH = load_measurements("pollux-deepspeech2")
NCF = load_measurements("pollux-ncf")
FILES = ("placements", "scalability")


def errors(verdict, runs, file):
    return [
        abs(row.error)
        for row, run in zip(verdict.rows, runs, strict=True)
        if not row.fitted and run.condition("file") == file
    ]


def resnet50_buckets():
    return pollux.rebuilt(profiles.load_workload("resnet50-v100"))


@pytest.mark.parametrize(
    ("judge", "runs", "file", "count", "middle", "high"),
    [
        (pollux.judge_imagenet, IMAGENET, "placements", 749, 0.0395, 0.105),
        (pollux.judge_imagenet, IMAGENET, "scalability", 252, 0.0385, 0.116),
        (pollux.judge_cifar10, CIFAR10, "placements", 1065, 0.072, 0.155),
        (pollux.judge_cifar10, CIFAR10, "scalability", 293, 0.084, 0.25),
        (pollux.judge_deepspeech2, SPEECH, "placements", 640, 0.058, 0.108),
        (pollux.judge_deepspeech2, SPEECH, "scalability", 162, 0.054, 0.14),
        (pollux.judge_ncf, NCF, "placements", 1533, 0.07, 0.19),
        (pollux.judge_ncf, NCF, "scalability", 422, 0.053, 0.162),
    ],
)
def test_errors_of_each_file_are_those_reached(judge, runs, file, count, middle, high):
    found = errors(judge(runs), runs, file)
    assert len(found) == count
    assert np.median(found) <= middle
    assert np.quantile(found, 0.9) <= high


@pytest.mark.parametrize("file", FILES)
def test_the_published_slowdown_helps_and_overlap_is_needed(file):
    buckets = resnet50_buckets()
    single = pollux.by_bucket(buckets, in_one(buckets))
    with_it, without, no_overlap = (
        float(np.median(errors(pollux.judge(IMAGENET, shape, effects), IMAGENET, file)))
        for shape, effects in ((buckets, pollux.EFFECTS), (buckets, NO_EFFECTS), (single, NO_EFFECTS))
    )
    assert with_it + 0.01 < without < 0.06
    assert no_overlap > 3 * without


def test_the_slowdown_is_the_published_one():
    assert Effects(compute_slowdown=CITED_SLOWDOWN) == pollux.EFFECTS


def test_only_the_smallest_batch_of_a_placement_and_the_runs_on_one_gpu_are_fitted():
    verdict = pollux.judge_imagenet(IMAGENET)
    for row, run in zip(verdict.rows, IMAGENET, strict=True):
        assert row.fitted == (run.workers == 1 or run.condition("batch_size") == "20")
    assert max(abs(row.error) for row in verdict.rows if row.fitted) < 1e-6
    assert sum(row.fitted for row in verdict.rows) == 143 + 8


def test_the_leak_test_catches_a_fit_on_all_batches():
    """Fitted on the largest batch instead, but reported as if on the smallest: the largest is then known."""
    few = [run for run in IMAGENET if run.condition("placement") in ("1", "11")]

    def peeking(runs):
        alone = {
            int(run.condition("batch_size")): with_compute_time(resnet50_buckets(), run.iteration_time)
            for run in runs
            if run.workers == 1
        }
        last = max((run for run in runs if run.workers > 1), key=lambda run: int(run.condition("batch_size")))
        cost = AffineCost(((0.0, pollux.seconds_per_byte(last, alone[200], pollux.EFFECTS)),))
        honest = pollux.judge_imagenet(runs).rows
        rows = [
            row if run.workers == 1 or row.fitted else pollux._row(run, alone, (20, cost), pollux.EFFECTS)
            for row, run in zip(honest, runs, strict=True)
        ]
        return pollux.Verdict(tuple(rows), "")

    assert leaks(pollux.judge_imagenet, few) == []
    assert leaks(peeking, few) != []


def test_the_time_in_sync_is_not_used():
    changed = [
        replace(run, conditions=tuple((k, "9") if k == "sync_time_s" else (k, v) for k, v in run.conditions))
        for run in IMAGENET
    ]
    assert pollux.judge_imagenet(changed) == pollux.judge_imagenet(IMAGENET)


def test_one_layer_per_bucket_changes_nothing():
    profile = profiles.load_workload("resnet50-v100")
    plan, cost = make_plan("ddp", profile, Pricing.of(FREE)), AffineCost(((1e-4, 1e-9),))
    buckets = pollux.by_bucket(profile, plan)
    whole = predict_timeline(profile, plan, cost, pollux.EFFECTS)
    short = predict_timeline(buckets, one_by_one(buckets), cost, pollux.EFFECTS)
    assert short.iteration_time == pytest.approx(whole.iteration_time, rel=1e-12)
    assert (buckets.gradient_bytes, len(buckets.gradients)) == (profile.gradient_bytes, len(plan.buckets))
    assert buckets.compute_time == pytest.approx(profile.compute_time)


def test_a_run_as_fast_as_computing_alone_costs_nothing_per_byte():
    run = next(run for run in IMAGENET if run.condition("placement") == "2")
    workload = with_compute_time(resnet50_buckets(), 2 * run.iteration_time)
    assert pollux.seconds_per_byte(run, workload, pollux.EFFECTS) == 0


def test_a_workload_of_another_compute_time_has_all_its_times_in_proportion():
    layers = (Layer("a", 1, 2, 4, enqueue_time=2.5), Layer("b", 1, 2, 4))
    twice = with_compute_time(Workload("w", layers, update_time=1), 14)
    assert (twice.forward_time, twice.backward_time, twice.update_time) == (4, 8, 2)
    assert [layer.enqueue_time for layer in twice.layers] == [5.0, None]


def test_buckets_of_old_and_new_versions_hold_the_same_bytes():
    workload = profiles.load_workload("resnet50-v100")
    old, new = pollux.as_built(workload), pollux.rebuilt(workload)
    assert old.gradient_bytes == new.gradient_bytes == workload.gradient_bytes
    assert MIB <= old.gradients.sizes[-1] < 2 * MIB < old.gradients.sizes[0]
    assert MIB <= new.gradients.sizes[0] < 10 * MIB  # a linear layer of 8 MB


def test_buckets_from_the_input_end_small_and_cover_all():
    workload = profiles.load_workload("resnet50-v100")
    plan = from_input(workload, (MIB, 25 * MIB))
    plan.require_valid(workload)
    sizes = [bucket.size for bucket in plan.buckets]
    assert sum(sizes) == workload.gradient_bytes
    assert MIB <= sizes[-1] < 2 * MIB  # the first that closes, at the input, is the last sent
    assert all(size >= 25 * MIB for size in sizes[1:-1])
    assert plan.buckets[-1].blocks[-1].layer == workload.layers[0].name
    assert from_input(workload, (1,)) == make_plan("wfbp", workload, Pricing.of(FREE))


@pytest.mark.parametrize(("runs", "faster"), [(IMAGENET, 55), (CIFAR10, 112), (NCF, 143)])
def test_in_how_many_placements_a_larger_batch_ran_faster(runs, faster):
    """No model of the same work on the same network predicts that; docs/ledger/pollux.md says so."""
    groups = {}
    for run in runs:
        if run.workers > 1:
            key = run.condition("file"), run.condition("placement")
            groups.setdefault(key, []).append((int(run.condition("batch_size")), run.iteration_time))
    assert len(groups) == 143
    falls = [any(later[1] < earlier[1] for earlier, later in pairwise(sorted(group))) for group in groups.values()]
    assert sum(falls) == faster
