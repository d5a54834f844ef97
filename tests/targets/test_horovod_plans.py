"""Horovod's settings as names of plans, on the command line, and where the host runs ahead."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel import Layer, UsageError, Workload
from osfmodel.cost.clusters import pricing_of
from osfmodel.engine import horovod_settings
from osfmodel.engine.horovod_loop import Loop, steady_iteration
from osfmodel.entities.compression import compressed
from osfmodel.entities.plan import one_by_one
from osfmodel.targets import horovod
from tests.commands import invoke

pytestmark = pytest.mark.usefixtures("ideal")

WHERE = ["resnet50-v100", "--cluster", "v100-10gbe", "--workers", "16"]
SMALL = ["alexnet-pipedream", *WHERE[1:]]

loops = st.builds(
    Loop,
    threshold=st.integers(0, 2**40),
    cycle=st.floats(1e-9, 1e3) | st.integers(0, 10**6).map(lambda ms: ms / 1000),
    streams=st.integers(1, 8),
    cache_capacity=st.integers(0, 5000),
    waits=st.booleans(),
    hierarchical=st.booleans(),
)


@given(loops)
def test_a_name_says_all_settings(loop):
    assert horovod_settings.named(horovod_settings.name_of(loop)) == loop


@pytest.mark.parametrize(
    "text", ["", "64", "64MiB,5", "64MiB,5ms,streams", "64MiB,5ms,streams=0", "64MiB,,fast", "-1B"]
)
def test_bad_settings_are_refused_with_the_accepted_forms(text):
    with pytest.raises(UsageError, match="write THRESHOLD,CYCLE"):
        horovod_settings.named(text)


def osf_command(*words):
    return invoke(words)


def predicted(*plans):
    words = [word for plan in plans for word in ("--plan", plan)]
    result = osf_command("predict", *WHERE, *words, "--json")
    assert result.exit_code == 0, result.stderr
    return {found["plan"]: found for found in json.loads(result.stdout)["predictions"]}


def test_settings_are_plans_by_name():
    found = predicted("horovod", "horovod:128MiB,1ms", "horovod:0B,1ms", "horovod:best")
    times = {name: row["iteration_time_s"] for name, row in found.items()}
    assert times["horovod"] == times["horovod:128MiB,1ms"]
    assert times["horovod:best"] < times["horovod"] < times["horovod:0B,1ms"]


def test_an_unknown_setting_is_one_line():
    result = osf_command("predict", *WHERE, "--plan", "horovod:64")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "such as 64MiB,5ms" in result.stderr


def test_more_streams_keep_more_in_flight():
    workload = osf.load_workload("resnet50-v100")
    pricing = pricing_of(osf.load_cluster("v100-10gbe"), 16)
    one, two = (horovod.to_plan(Loop(streams=streams), workload, pricing) for streams in (1, 2))
    assert (one.channels, two.channels) == (1, 2)
    found = predicted("horovod:1MiB,1ms", "horovod:1MiB,1ms,streams=2")
    followed = steady_iteration(Loop(2**20, streams=2), workload, pricing.under({"executor": "horovod"}))
    two, one = (found[f"horovod:1MiB,1ms{words}"]["iteration_time_s"] for words in (",streams=2", ""))
    assert two == pytest.approx(followed.iteration_time)
    assert two < one


def test_a_plan_of_horovods_is_priced_as_its_runs_are():
    """Without DDP's copies, and without what gloo runs at once for DDP: the engine and the loop agree."""
    workload, cluster = osf.load_workload("resnet50-v100").scaled(5), osf.load_cluster("emulated-4x1gbit")
    assert cluster.in_flight == 2
    pricing = pricing_of(cluster, 4).under({"executor": "horovod"})
    assert (
        osf.predict(workload, cluster, "horovod", 4).iteration_time
        == steady_iteration(Loop(), workload, pricing).iteration_time
    )


def test_one_worker_alone_waits_for_no_cycle():
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    assert osf.predict(workload, cluster, "horovod", 1).iteration_time == pytest.approx(workload.compute_time)


def test_groups_on_offer_form_the_plan_with_the_settings_beside_them():
    workload, cluster = osf.load_workload("googlenet-k80"), osf.load_cluster("v100-56gib")
    tuning = osf.tune(workload, cluster, 16, "horovod")
    line = next(line for line in tuning.rendered.splitlines() if "HOROVOD_DISABLE_GROUP_FUSION=1" in line)
    said = dict(pair.split("=") for pair in line.removeprefix("#").split())
    loop = Loop(
        int(said["HOROVOD_FUSION_THRESHOLD"]), float(said["HOROVOD_CYCLE_TIME"]) / 1e3, tuning.knobs.groups, True
    )
    plan = horovod.to_plan(loop, workload, pricing_of(cluster, 16))
    assert len(plan.buckets) == len(tuning.knobs.groups)


def test_fp16_is_part_of_what_is_to_be_pasted():
    words = ["tune", *SMALL, "--for", "horovod", "--compression", "fp16"]
    assert "compression=hvd.Compression.fp16" in osf_command(*words).stdout


def test_as_fp16_half_as_much_is_sent():
    workload = Workload("w", (Layer("a", 1.0, 1.0, 400), Layer("b", 1.0, 1.0, 16, "float64"), Layer("c", 1.0, 1.0, 0)))
    half = compressed(workload, "fp16")
    assert half.name == "w-fp16"
    assert [(layer.gradient_bytes, layer.dtype) for layer in half.layers] == [
        (200, "float16"), (4, "float16"), (0, "float32"),
    ]  # fmt: skip
    assert half.compute_time == workload.compute_time
    whole, less = (
        json.loads(osf_command("predict", *WHERE, "--plan", "single", "--json", *extra).stdout)
        for extra in ([], ["--compression", "fp16"])
    )
    assert less["predictions"][0]["iteration_time_s"] < whole["predictions"][0]["iteration_time_s"]


def test_a_host_that_runs_ahead_submits_earlier():
    workload = osf.load_workload("googlenet-k80")
    ahead = workload.ahead(4)
    assert ahead.gradients.ready_times == workload.gradients.ready_times
    assert ahead.gradients.enqueue_times == pytest.approx([time / 4 for time in workload.gradients.ready_times])
    with pytest.raises(osf.OsfError, match="1 or more"):
        workload.ahead(0.5)


def test_settings_bear_a_host_that_runs_ahead():
    """In the worst case of the leads what is recommended is no slower than the default."""
    workload, cluster = osf.load_workload("googlenet-k80"), osf.load_cluster("k80-10gbe-ring")
    pricing = pricing_of(cluster, 64)
    tuning = osf.tune(workload, cluster, 64, "horovod", leads=(1.0, 5.0))

    def worst(loop):
        plans = [(host, horovod.to_plan(loop, host, pricing)) for host in (workload.ahead(1), workload.ahead(5))]
        return max(osf.predict(host, cluster, plan, 64).iteration_time for host, plan in plans)

    assert worst(tuning.knobs) <= worst(Loop())
    assert any("times assume that the CPU does not run ahead" in note for note in tuning.notes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--for", "ddp", "--host-lead", "2"], "leave it out"),
        (["--for", "horovod", "--host-lead", "0.5"], "1 or more"),
        (["--for", "horovod", "--host-lead", "5..1"], "1 or more"),
        (["--for", "horovod", "--host-lead", "fast"], "1 or more"),
    ],
)
def test_a_lead_that_cannot_be_is_refused(words, said):
    result = osf_command("tune", *WHERE, *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_what_settings_alone_would_take_is_said():
    result = osf_command("tune", *SMALL, "--for", "horovod")
    assert "settings alone cannot form this plan: the best found, horovod:" in " ".join(result.stdout.split())


def test_what_a_run_states_is_read_back():
    workload = osf.load_workload("googlenet-k80")
    plan = one_by_one(workload)
    pricing = pricing_of(osf.load_cluster("k80-10gbe-ring"), 8)
    from osfmodel.entities.files.notation import written

    loop = horovod.from_plan(plan, workload, pricing)
    told = {"settings": horovod_settings.name_of(loop), "sent": written(plan, workload)}
    assert horovod.from_conditions(told, workload) == loop
    assert horovod.from_conditions({"settings": "1MiB,20ms"}, workload) == Loop(2**20, 0.02)


def test_the_best_settings_send_on_one_stream():
    assert horovod.settings_of("horovod:best")[2] == 1
    assert horovod.settings_of("horovod:64MiB,5ms,streams=3")[2] == 3
