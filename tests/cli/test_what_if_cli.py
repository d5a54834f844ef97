"""Options for what-ifs on the command line, their output, and impossible values."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

import osfmodel as osf
from osfmodel.entities.batches import FIXED_SHARE, time_ratio
from osfmodel.show.predicted import show_comparison
from tests.cli.test_cli import run, run_json

pytestmark = pytest.mark.usefixtures("ideal")

WHERE = ["resnet50-v100", "--cluster", "v100-10gbe"]
PREDICT = ["predict", *WHERE, "--workers", "16", "--plan", "ddp"]
TUNE = ["tune", *WHERE, "--workers", "16"]


def test_assumptions_are_in_every_output():
    asked = ["--bandwidth", "x2", "--compute", "x1.5"]
    text = run(*PREDICT, *asked).stdout
    assert text.startswith("resnet50-v100 on v100-10gbe with bandwidth x2, compute x1.5, 16 workers\n")
    assert "what joins the GPUs of a node stays" in text
    assert "has an allowance for this what-if (bandwidth x2, compute x1.5)" in " ".join(text.split())
    found = run_json(*PREDICT, *asked)
    assert found["what_if"] == {"bandwidth_factor": 2, "compute_factor": 1.5}
    assert any("error band" in note for note in found["predictions"][0]["notes"])
    tuned = run(*TUNE, *asked).stdout
    assert tuned.startswith("resnet50-v100 on v100-10gbe with bandwidth x2, compute x1.5 for ddp\n")
    assert run_json(*TUNE, *asked)["what_if"] == found["what_if"]


def test_a_bandwidth_may_be_that_of_a_node():
    """Twice 200 Gbps per node is 400 Gbps per node, or 50 Gbps for each of its eight GPUs."""
    asked = ["predict", "resnet50-v100", "--cluster", "nccl:a100x8,200Gbps/node,roce", "--workers", "32", "--bandwidth"]
    times = [run_json(*asked, rate)["predictions"][0]["iteration_time_s"] for rate in RATES]
    assert times == pytest.approx([times[0]] * len(RATES))
    shared = ["predict", "resnet50-v100", "--cluster", "hierarchical:8,5us,200GB/s,50us,25Gbps,2", "--workers", "32"]
    rates = ("400Gbps", "400Gbps/nic", "100Gbps/gpu", "800Gbps/node", "x16")
    times = [run_json(*shared, "--bandwidth", rate)["predictions"][0]["iteration_time_s"] for rate in rates]
    assert times == pytest.approx([times[0]] * len(rates))
    assert run_json(*asked, "400Gbps/node")["what_if"] == {"bandwidth_bytes_per_s": 5e10, "bandwidth_per": "node"}
    refused = run(*asked, "400Gbps/rack")
    assert (refused.exit_code, "unknown bandwidth unit" in refused.stderr) == (2, True)


RATES = ("x2", "50Gbps", "50Gbps/gpu", "400Gbps/node")


def test_what_of_a_price_no_network_changes_is_said():
    text = run("predict", "resnet50-v100", "--cluster", "nccl-h100-ndr", "--workers", "16", "--latency", "x3").stdout
    said = " ".join(text.split())
    assert "stays; launches and the ceilings of NCCL's low-latency protocols stay as they are." in said


def test_clusters_in_words_say_their_network_per_gpu_and_per_node():
    """A rate that no such machine has is questioned in one line, whatever the number of plans and worker counts."""
    words = ["resnet50-h100", "--cluster", "nccl:h100x8,3200Gbps"]
    doubt = "nccl:h100x8,3200Gbps: 3200Gbps is taken per GPU; machines with H100 have 400 Gbps per GPU. If the node has"
    for command in ("predict", "tune"):
        found = run(command, *words, "--workers", "8,16,32")
        assert "Note: network: 3.2 Tbps per GPU, 25.6 Tbps per node, fabric not stated, priced as ib." in found.stdout
        assert found.stderr.count(doubt) == 1
        changed = run(command, *words, "--workers", "16", "--bandwidth", "x2")
        assert "network: 6.4 Tbps per GPU, 51.2 Tbps per node, fabric" in changed.stdout
        named = run(command, words[0], "--cluster", "nccl:h100x8,400Gbps,efa", "--workers", "16")
        assert "Note: network: 400 Gbps per GPU, 3.2 Tbps per node, efa." in named.stdout
        inside = run(command, *words, "--workers", "8")
        assert "network:" not in inside.stdout
        assert inside.stderr == ""
    text = run(
        "predict", "resnet50-h100", "--cluster", "hierarchical:8,5us,200GB/s,50us,25Gbps/node", "--workers", "16"
    )
    assert "Note: network: 25 Gbps per node, shared by its 8 GPUs." in text.stdout


def test_nothing_is_said_where_nothing_is_asked():
    for command in (PREDICT, TUNE):
        found = run_json(*command)
        assert "what_if" not in json.dumps(found)
        assert run(*command).stdout == run(*command, "--bandwidth", "x1", "--accumulate", "1").stdout


def test_rates_are_shown_without_a_question_so_that_answers_can_be_compared(tmp_path):
    workload = osf.load_workload("resnet50-v100")
    for row in run_json(*PREDICT)["predictions"]:
        assert row["samples_per_s"] == pytest.approx(16 * workload.batch_size / row["iteration_time_s"])
    assert "samples/s" in run(*PREDICT).stdout
    osf.save(replace(workload, batch_size=None), tmp_path / "unknown.json")
    unknown = ["predict", str(tmp_path / "unknown.json"), *PREDICT[2:]]
    assert "samples_per_s" not in run_json(*unknown)["predictions"][0]
    assert "samples/s" not in run(*unknown).stdout


@pytest.mark.parametrize(("width", "shown"), [(90, True), (70, False)])
def test_rates_take_no_room_from_times_on_a_narrow_terminal(width, shown):
    comparison = osf.compare(osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe"), 16, ["ddp"])
    buffer = io.StringIO()
    show_comparison(Console(file=buffer, width=width, force_terminal=True, color_system=None), comparison)
    assert ("No room for samples/s: widen the terminal" in buffer.getvalue()) == (not shown)
    assert "113 ms" in buffer.getvalue()


def test_the_command_line_and_the_library_agree():
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    what_if = osf.WhatIf(osf.Change(2), osf.Change(value=1e-5), 1.5, "fp16", 3)
    found = osf.predict(what_if.of_workload(workload, 16), what_if.of_cluster(cluster), "ddp", 16)
    words = [
        "--bandwidth",
        "x2",
        "--latency",
        "10us",
        "--compute",
        "x1.5",
        "--compression",
        "fp16",
        "--accumulate",
        "3",
    ]
    row = run_json(*PREDICT, *words)["predictions"][0]
    assert row["iteration_time_s"] == found.iteration_time
    assert row["samples_per_s"] == pytest.approx(16 * 3 * 32 / found.iteration_time)


def test_accumulation_scales_better_and_counts_all_samples():
    one, four = run_json(*PREDICT), run_json(*PREDICT, "--accumulate", "4")
    before, after = one["predictions"][0], four["predictions"][0]
    added = 3 * one["compute_time_s"]  # the profile has no update
    assert after["iteration_time_s"] == pytest.approx(before["iteration_time_s"] + added)
    assert after["scaling_factor"] == pytest.approx(4 * one["compute_time_s"] / after["iteration_time_s"])
    assert after["scaling_factor"] > before["scaling_factor"]


def test_strong_scaling_shares_one_batch_among_more_workers():
    sweep = ["predict", *WHERE, "--workers", "4..64", "--plan", "optimal"]
    result = run(*sweep, "--global-batch", "2048", "--scaling", "strong", "--samples", "1M", "--json")
    found = json.loads(result.stdout)
    assert "no profile at batch 512, 256, 128, 64" in result.stderr  # and 32, as profiled
    weak = run_json(*sweep, "--scaling", "weak")["sweep"]
    rows = [entry["predictions"][0] for entry in found["sweep"]]
    profile = osf.load_workload("resnet50-v100")
    growing = profile.compute_time - profile.update_time
    alone = time_ratio(64) * growing + profile.update_time  # one worker with 2048 samples
    for entry, row in zip(found["sweep"], rows, strict=True):
        assert row["speed_up"] == pytest.approx(alone / row["iteration_time_s"])
        assert row["samples_per_s"] == pytest.approx(2048 / row["iteration_time_s"])
        assert row["hours"] == pytest.approx(1e6 / 2048 * row["iteration_time_s"] / 3600)
        each = 2048 / entry["workers"] / 32
        assert entry["compute_time_s"] == pytest.approx(time_ratio(each) * growing + profile.update_time)
    factors = [row["scaling_factor"] for row in rows]
    assert factors == sorted(factors, reverse=True)  # less to hide behind, the more share it
    assert rows[-1]["iteration_time_s"] == weak[-1]["predictions"][0]["iteration_time_s"]  # 32 each, as profiled
    text = run(*sweep, "--global-batch", "2048", "--samples", "1M").stdout
    assert "Single-worker time with the whole global batch: 4.01 s." in text
    assert "batch of 2048 for all workers" in text
    assert re.search(r"^optimal +32 +64 +160 ms +12,800 +25.1x +0.785 ", text, re.MULTILINE)
    assert "v100-10gbe with global batch 2048: strong scaling\n" in text
    assert run(*sweep, "--scaling", "weak").stdout.startswith("resnet50-v100 on v100-10gbe: weak scaling\n")
    assert [entry["scaling"] for entry in (*found["sweep"][:1], *weak[:1])] == ["strong", "weak"]


def test_two_profiles_are_gone_by_where_both_are_given(tmp_path):
    profile = osf.load_workload("resnet50-v100")
    small = osf.at_batch(profile, 16)
    other = tmp_path / "other.json"
    osf.save(small, other)
    result = run(*PREDICT, "--batch-size", "64", "--also", other, "--json")
    assert result.exit_code == 0
    assert "no profile at batch" not in result.stderr
    by_one = run_json(*PREDICT, "--batch-size", "64")
    assert json.loads(result.stdout)["compute_time_s"] == pytest.approx(osf.at_batch(profile, 64).compute_time)
    assert by_one["compute_time_s"] == pytest.approx(osf.at_batch(profile, 64, fixed=FIXED_SHARE).compute_time)
    assert by_one["what_if"] == {"batch_size": 64}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bandwidth x0", "write a factor above 0 after an x"),
        ("--bandwidth x-1", "write a factor above 0 after an x"),
        ("--bandwidth x", "write a factor above 0 after an x"),
        ("--bandwidth xnan", "write a factor above 0 after an x"),
        ("--bandwidth x1e99", "write a factor above 0 after an x"),
        ("--bandwidth 2", "has no unit: write for example 10Gbps or 1.25GB/s; or write a factor such as x2"),
        ("--bandwidth 25gbits", "did you mean 25Gbit/s"),
        ("--bandwidth 0Gbps", "must be above 0"),
        ("--bandwidth 10us", "unknown bandwidth unit 'us'"),
        ("--latency 1Gbps", "unknown time unit 'Gbps'"),
        ("--latency x0", "write a factor above 0"),
        ("--latency soon", "is not a time"),
        ("--compute 1.5", "write a factor above 0 after an x, such as x1.5"),
        ("--compute x", "write a factor above 0"),
        ("--compression powersgd", "did you mean powersgd:RANK?"),
        ("--compression fp_16", "did you mean fp16?"),
        ("--compression zip", "write one of none, fp16, bf16, powersgd:RANK"),
        ("--accumulate 0", "--accumulate 0: it must be a whole number from 1"),
        ("--accumulate -2", "--accumulate -2: it must be a whole number from 1"),
        ("--global-batch 1000", "is not shared evenly by 16 workers: give --global-batch 992 or"),
        ("--global-batch 0", "1 or more"),
        ("--global-batch 64 --batch-size 4", "contradicts"),
        ("--scaling strong", "needs --global-batch"),
        ("--scaling weak --global-batch 64", "contradicts --global-batch"),
        ("--also other.json", "--also is for --batch-size or --global-batch"),
    ],
)
def test_questions_that_make_no_sense_are_one_line(words, said):
    result = run(*PREDICT, *words.split())
    assert result.exit_code == 2, result.output
    assert re.fullmatch(f"osf: [^\n]*{re.escape(said)}[^\n]*\n", result.stderr), result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("written", ["FP16", "Fp16", "fp16"])
def test_names_are_known_in_capitals_as_well(written):
    assert run_json(*PREDICT, "--compression", written) == run_json(*PREDICT, "--compression", "fp16")
    for words in (("--cost-model", "Ring"), ("--engine", "AUTO")):
        assert (
            run_json(*PREDICT, *words)["predictions"] == run_json(*PREDICT, words[0], words[1].lower())["predictions"]
        )


def test_a_batch_size_that_nobody_knows_is_stated_and_not_scaled_from():
    asked = ["predict", "gnmt-pipedream", "--cluster", "v100-10gbe", "--workers", "8", "--plan", "ddp"]
    result = run(*asked, "--batch-size", "4", "--json")
    assert "does not say at which batch size it was profiled" in result.stderr
    assert json.loads(result.stdout)["compute_time_s"] == run_json(*asked)["compute_time_s"]
    assert run(*asked, "--global-batch", "64").exit_code == 1


def test_a_table_has_no_bandwidth_to_set():
    asked = ["predict", "resnet50-v100", "--cluster", "azure-a100-hdr", "--workers", "8", "--bandwidth"]
    result = run(*asked, "200Gbps")
    assert result.exit_code == 2
    assert "is not described by a bandwidth of a link: change it by a factor, such as --bandwidth x2" in result.stderr
    assert "what larger ones take beyond it" in " ".join(run(*asked, "x2").stdout.split())


@pytest.mark.parametrize(
    ("extra", "said"),
    [("--memory 4GiB --workers 16", "leave --bandwidth out"), ("--live folder", "--bandwidth does not work with")],
)
def test_what_measures_or_counts_bytes_takes_no_what_if(extra, said):
    result = run("tune", "resnet50-memory", "--cluster", "v100-10gbe", *extra.split(), "--bandwidth", "x2")
    assert result.exit_code == 2
    assert said in result.stderr
    kept = run("memory", "resnet50-memory", "--accumulate", "2")
    assert kept.exit_code == 2
    assert "what is kept with 2 micro-batches accumulated is not known here" in kept.stderr
