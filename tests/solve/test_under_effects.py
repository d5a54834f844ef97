"""Settings chosen under effects against trying them one by one with the same effects."""

from __future__ import annotations

import json

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.entities.display import show_predicted_time
from osfmodel.entities.units import MIB
from osfmodel.solve.under_effects import best_cap_timed, caps_timed
from osfmodel.targets import ddp, horovod
from tests.commands import invoke

CASES = [
    ("resnet50-v100", "v100-10gbe", 64),
    ("resnet50-v100", "v100-10gbe", 16),
    ("googlenet-k80", "k80-10gbe-ring", 8),
    ("vgg16-pipedream", "nccl:a100x8,200Gbps,roce", 32),
    ("gnmt-pipedream", "nccl:t4x1,10Gbps,tcp", 8),
]


@pytest.fixture(params=CASES, ids=lambda case: case[0])
def job(request):
    """Workload, prices, and seconds of DDP with given limits."""
    name, cluster, workers = request.param
    workload = osf.load_workload(name)
    pricing = pricing_of(osf.load_cluster(cluster), workers, workload)
    assert pricing.effects.active

    def timed(*limits):
        return predict_timeline(workload, ddp.to_plan(ddp.DdpKnobs(limits), workload), pricing).iteration_time

    return workload, pricing, timed


def test_the_best_cap_under_effects_is_no_slower_than_others(job):
    workload, pricing, timed = job
    whole = workload.gradient_bytes
    others = [timed(min(size * MIB, whole)) for size in (1, 2, 4, 9, 16, 25, 40, 64, 100, 200, 400)]
    assert timed(best_cap_timed(workload, pricing)) <= min(others) * 1.01


def test_no_fallback_of_ddp_is_slower_than_its_defaults(job):
    workload, pricing, timed = job
    found = caps_timed(workload, [pricing])
    default = timed(*ddp.DDP_LIMITS)
    assert timed(*found.pair) <= default * 1.001
    assert timed(found.cap) <= timed(ddp.DDP_LIMITS[-1]) * 1.001
    assert timed(found.whole_mib * MIB) <= timed(ddp.DDP_LIMITS[-1]) * 1.001


def test_the_settings_of_horovod_found_while_tuning_are_no_slower_than_its_defaults(job):
    workload, pricing, _ = job
    loop, _ = horovod.search([horovod.Case(workload, pricing, workload.compute_time)], osf.Limits())

    def timed(loop):
        return predict_timeline(workload, horovod.to_plan(loop, workload, pricing), pricing).iteration_time

    assert timed(loop) <= timed(horovod.Loop()) * 1.001


def command(*words):
    result = invoke(words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.usefixtures("kept_tuning")
def test_what_settings_alone_would_take_is_the_best_plan_of_that_name():
    """On GPUs the slowdown of computation holds the host as well, for a host in step with the device."""
    where = ["alexnet-pipedream", "--cluster", "v100-10gbe", "--workers", "16"]
    tuned = " ".join(command("tune", *where, "--for", "horovod").split())
    best = command("predict", *where, "--plan", "horovod:best", "--format", "json")
    (row,) = json.loads(best)["predictions"]
    assert f"takes {show_predicted_time(row['iteration_time_s'])}" in tuned


@pytest.mark.usefixtures("kept_tuning")
def test_a_file_whose_settings_need_the_groups_says_so(tmp_path):
    written = tmp_path / "horovod.env"
    command("tune", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "16", "--for", "horovod", "-o", written)
    assert "# 1 to 3 need the groups of 4" in written.read_text()
