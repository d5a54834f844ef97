"""The batch size and the plan that train fastest within a limit."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel import DataError, PlanError, UsageError
from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.entities.batches import at_batch
from osfmodel.entities.plan import one_by_one
from osfmodel.planning.memory import MemoryBudget
from osfmodel.planning.memory.search import tune_memory
from tests.blocks import blocks
from tests.commands import invoke
from tests.draws import examples

GIB = 1 << 30
CLUSTER = load_cluster("ring:50us,10Gbps")
BLOCKS = blocks(count=2)


@cache
def tuned(limit, density=None, workload=BLOCKS, **more):
    return tune_memory(workload, CLUSTER, 8, MemoryBudget(limit, density=density, **more))


# -------------------------------------------------------------------------------------------------------------- batches


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(1, 200))
def test_one_profile_grows_in_proportion(first, second):
    found, made = at_batch(blocks(first), second), blocks(second)
    assert found.batch_size == second
    assert found.gradients.sizes == made.gradients.sizes
    assert found.compute_time == pytest.approx(made.compute_time)
    for layer, wanted in zip(found.layers, made.layers, strict=True):
        assert layer.peak_bytes == pytest.approx(wanted.peak_bytes, abs=2)
        assert layer.activation_bytes == pytest.approx(wanted.activation_bytes, abs=2)


def test_steady_bytes_of_a_peak_do_not_grow():
    layers = tuple(replace(layer, peak_bytes=layer.peak_bytes + 77, steady_bytes=77) for layer in BLOCKS.layers)
    for found, wanted in zip(at_batch(replace(BLOCKS, layers=layers), 160).layers, BLOCKS.layers, strict=True):
        assert found.peak_bytes == 10 * wanted.peak_bytes + 77


def affine(batch_size):
    """A block model whose times have a part that does not depend on the batch."""
    made = blocks(batch_size, 2)
    layers = tuple(replace(layer, forward_time=layer.forward_time + 1e-3) for layer in made.layers)
    return replace(made, layers=layers)


def test_two_profiles_give_the_line_through_both():
    found = at_batch(affine(8), 24, affine(16))
    assert found.forward_time == pytest.approx(affine(24).forward_time)
    assert at_batch(affine(8), 24).forward_time != pytest.approx(affine(24).forward_time)
    assert at_batch(affine(8), 8, affine(16)) == affine(8)


def test_a_line_that_would_go_below_nothing_ends_there():
    steep = replace(BLOCKS, batch_size=8)
    assert at_batch(steep, 1, blocks(64, 2)).forward_time >= 0


@pytest.mark.parametrize(
    ("workload", "other", "message"),
    [
        (replace(BLOCKS, batch_size=None), None, "does not say at which batch size"),
        (BLOCKS, BLOCKS, "needs a batch size other than 16"),
        (BLOCKS, blocks(8, 3), "are not profiles of the same model"),
    ],
)
def test_batches_that_cannot_be_scaled_are_refused(workload, other, message):
    with pytest.raises(DataError, match=message):
        at_batch(workload, 4, other)


# -------------------------------------------------------------------------------------------------------------- tuning


def test_the_plan_keeps_the_limit_and_beats_what_was_there():
    for limit in (GIB, 2 * GIB, 8 * GIB):
        found = tuned(limit)
        again = memory_of(found.after.workload, found.after.plan, found.after.timeline, 8, "runtime")
        assert again.peak.bytes == found.after.memory.peak.bytes <= limit
        assert found.before is not None
        assert found.before.memory.peak.bytes <= limit
        assert found.after.throughput >= found.before.throughput
        assert found.after.iteration_time >= found.after.bound * (1 - 1e-9)


def test_a_larger_batch_than_the_largest_does_not_fit():
    found = tuned(2 * GIB)
    again = tuple(segment.name for segment in BLOCKS.segments)
    for size, fits in ((found.largest, True), (found.largest + 1, False)):
        seen = at_batch(BLOCKS, size)
        plan = replace(one_by_one(seen), recompute=again, release=True)
        timeline = predict_timeline(seen, plan, pricing_of(CLUSTER, 8))
        assert (memory_of(seen, plan, timeline, 8).peak.bytes <= 2 * GIB) is fits
    assert max(fit.batch_size for fit in found.tried) <= found.largest


@pytest.mark.parametrize("density", [None, 0.01])
@pytest.mark.parametrize("limit", [GIB // 4, pytest.param(GIB // 2, marks=pytest.mark.long)])
def test_no_other_batch_size_is_much_faster(limit, density):
    """Each by itself, of all that fit."""
    found = tuned(limit, density)
    others = [tuned(limit, density, batch_size=size).after for size in range(1, found.largest + 1)]
    assert [fit.batch_size for fit in others] == list(range(1, found.largest + 1))
    assert max(fit.throughput for fit in others) <= 1.02 * found.after.throughput


def test_a_stated_batch_size_is_the_only_one_tried():
    for size in (1, 7, 20):
        found = tuned(GIB, batch_size=size)
        assert {fit.batch_size for fit in found.tried} == {found.after.batch_size} == {size}


def test_fewer_permissions_are_not_faster():
    free = tuned(GIB).after.throughput
    assert tuned(GIB, release=False).after.throughput <= free * 1.001
    assert tuned(GIB, 0.01).after.throughput >= free * 0.999


@settings(max_examples=examples(6))
@given(st.integers(1, 37))
def test_what_fits_with_all_saved_is_found(size):
    """A batch for which one by one fits has a plan, whatever the programme sets aside for buckets."""
    assert tuned(GIB, batch_size=size).after.batch_size == size


def test_more_memory_is_never_slower():
    throughputs = [tuned(limit).after.throughput for limit in (GIB, 2 * GIB, 8 * GIB)]
    assert all(later >= 0.98 * before for before, later in pairwise(throughputs))


def test_what_the_library_keeps_is_taken_of_the_limit():
    """A single worker has no communicator."""
    less, kept = tuned(GIB - (200 << 20)), tuned(GIB, communicator=200 << 20)
    assert kept.after.plan == less.after.plan
    assert kept.after.batch_size == less.after.batch_size
    assert kept.after.memory.peak.bytes == less.after.memory.peak.bytes + (200 << 20)
    alone = tune_memory(BLOCKS, CLUSTER, 1, MemoryBudget(GIB, communicator=200 << 20, batch_size=8))
    assert "communicators" not in alone.after.memory.peak.held


def test_without_sparse_nothing_changes_the_mathematics():
    found = tuned(GIB)
    assert not any(fit.plan.sparse for fit in found.tried)
    sparse = tuned(GIB, 0.01)
    assert sparse.after.plan.sparse
    assert {bucket.density for bucket in sparse.after.plan.buckets} <= {None, 0.01}
    assert sparse.after.throughput > found.after.throughput
    assert not sparse.after.plan.mirror
    assert tuned(GIB, 0.01, mirror=True, batch_size=8).after.plan.mirror


def test_room_enough_means_that_nothing_is_recomputed():
    found = tuned(64 * GIB, batch_size=16)
    assert found.after.plan.recompute == ()
    assert not found.after.plan.sparse


def test_gradients_are_kept_where_they_must_be():
    found = tuned(GIB, release=False)
    assert not any(fit.plan.release for fit in found.tried)


@pytest.mark.parametrize(
    ("workload", "limit", "more", "error", "message"),
    [
        (BLOCKS, 1 << 20, {}, PlanError, "does not fit 1.000 MiB with 1 sample: "),
        (
            BLOCKS,
            GIB,
            {"batch_size": 4096},
            PlanError,
            "fit 1.000 GiB with 4096 samples: .* or a smaller batch",
        ),
        (BLOCKS, GIB, {"density": 0.01, "mirror": True, "optimizer": "adam"}, UsageError, "mirror weights need SGD"),
        (BLOCKS, GIB, {"mirror": True}, UsageError, "state a density"),
        (BLOCKS, GIB, {"communicator": -1}, DataError, "bytes of a communicator"),
        (BLOCKS, 0, {}, UsageError, "a memory limit of 0 bytes"),
        (BLOCKS, GIB, {"density": 0.0}, PlanError, "above 0, since nothing would be sent"),
        (BLOCKS, GIB, {"density": 1.5}, PlanError, "no tensor has more elements"),
        (BLOCKS, GIB, {"optimizer": "lion"}, UsageError, "unknown optimizer 'lion'"),
        (replace(BLOCKS, state_bytes=None), GIB, {}, DataError, "give --optimizer adamw"),
        (replace(BLOCKS, batch_size=None), GIB, {}, DataError, "does not say at which batch size"),
        (osf.load_workload("resnet50-v100"), GIB, {"optimizer": "sgd"}, DataError, "does not say what its layers keep"),
    ],
)
def test_impossible_requests_are_refused(workload, limit, more, error, message):
    with pytest.raises(error, match=message):
        tuned(limit, workload=workload, **more)


# -------------------------------------------------------------------------------------------------------- command line


@pytest.fixture
def profile(tmp_path):
    osf.save(BLOCKS, tmp_path / "blocks.json")
    return str(tmp_path / "blocks.json")


def osf_(*words):
    return invoke(words)


def test_the_table_says_before_and_after(profile):
    found = osf_("tune", profile, "--cluster", "ring:50us,10Gbps", "--workers", "8", "--memory", "1GiB")
    assert found.exit_code == 0, found.output
    for words in ("DDP's defaults", "tuned", "samples per second", "the largest batch that fits", "at the peak", "█"):
        assert words in found.output


def test_the_document_is_a_plan_file(profile, tmp_path):
    target = str(tmp_path / "plan.json")
    words = (
        "tune",
        profile,
        "--cluster",
        "ring:50us,10Gbps",
        "--workers",
        "8",
        "--memory",
        "1GiB",
        "--batch-size",
        "8",
    )
    words = (*words, "-o", target)
    assert osf_(*words).exit_code == 0
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["after"]["peak_bytes"] <= document["limit_bytes"] == GIB
    plan = osf.load_plan(target)
    assert list(plan.recompute) == document["after"]["recompute"]
    assert plan.release is document["after"]["release"]
    assert osf_("predict", profile, "--cluster", "ring:50us,10Gbps", "--workers", "8", "--plan", target).exit_code == 0
    assert osf_("memory", profile, "--cluster", "ring:50us,10Gbps", "--workers", "8", "--plan", target).exit_code == 0
    rows = list(csv.DictReader(io.StringIO(osf_(*words[:-2], "-f", "csv").output)))
    assert [row["which"] for row in rows[:2]] == ["before", "after"]


def test_osf_memory_names_the_owners_of_the_peak(profile):
    alone = osf_("memory", profile, "--batch-size", "32", "--json")
    assert alone.exit_code == 0, alone.output
    (entry,) = json.loads(alone.output)["plans"]
    assert sum(entry["peak_owners"].values()) == entry["peak_bytes"] == max(one["bytes"] for one in entry["levels"])
    weights = BLOCKS.gradient_bytes
    assert entry["peak_owners"]["weights"] == entry["peak_owners"]["optimizer state"] == weights
    both = osf_(
        "memory", profile, "--cluster", "ring:50us,10Gbps", "--workers", "8", "--plan", "ddp", "--plan", "single"
    )
    assert both.exit_code == 0
    assert "buckets" in both.output
    levels = osf_("memory", profile, "-f", "csv").output.splitlines()
    assert len(levels) == 1 + 2 * len(BLOCKS.layers) + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tune", "--workers", "8", "--sparse"), "--sparse works only with --memory SIZE"),
        (
            ("tune", "--workers", "8", "--memory", "2GiB", "--for", "ddp"),
            "--memory works with --for fsdp2, hsdp, torchtitan, runtime or any, not with ddp",
        ),
        (("tune", "--workers", "8", "--memory", "2GiB", "--channels", "2"), "--channels does not work with --memory"),
        (("tune", "--workers", "4,8", "--memory", "2GiB"), "--memory plans for one worker count"),
        (("tune", "--workers", "8", "--memory", "lots"), "lots"),
        (
            ("tune", "--workers", "8", "--memory", "2GiB", "--sparse", "--density", "few"),
            "write a fraction of the entries",
        ),
        (("tune", "--workers", "8", "--memory", "2GiB", "--sparse", "--density", "0"), "nothing would be sent"),
        (("tune", "--workers", "8", "--memory", "2GiB", "--mirror"), "--mirror works only with --sparse"),
        (("memory", "--workers", "4,8"), "give one count"),
        (("memory", "--workers", "8", "--also", "x.json"), "--also is for --batch-size"),
    ],
)
def test_mistakes_on_the_command_line(profile, words, message):
    command, *rest = words
    found = osf_(command, profile, "--cluster", "ring:50us,10Gbps", *rest)
    assert found.exit_code in (1, 2)
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_a_cluster_without_workers_is_asked_for(profile):
    found = osf_("memory", profile, "--cluster", "ring:50us,10Gbps")
    assert "give --workers N with --cluster" in found.output
    found = osf_("memory", profile, "--plan", "ddp")
    assert "give --cluster and --workers, or leave --plan out" in found.output


def test_the_plan_alone_is_printed_and_no_script_is_written(tmp_path):
    asked = ["tune", "resnet50-memory", "--cluster", "v100-10gbe", "--workers", "8", "--memory", "8GiB"]
    asked += ["--batch-size", "16"]
    plan = invoke([*asked, "--format", "code"])
    assert (plan.exit_code, "buckets" in json.loads(plan.stdout)) == (0, True)
    refused = invoke([*asked, "-o", str(tmp_path / "plan.py")])
    assert (refused.exit_code, "name it .json" in refused.stderr) == (2, True)
