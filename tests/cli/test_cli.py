"""The command line: the contract, and every kind of bad input."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import itertools
import json
import math
import os
import re
import stat
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import yaml

import osfmodel as osf
from osfmodel.cli.app import WORKLOAD
from osfmodel.cli.options import parse_workers
from osfmodel.entities.display import show_bytes
from osfmodel.entities.files import documents
from osfmodel.entities.gpus import GPUS
from osfmodel.entities.plan import contiguous_plan
from osfmodel.targets.named_plans import STOCK_PLANS
from tests.commands import invoke
from tests.conftest import ROOT
from tests.formats import traces

pytestmark = pytest.mark.usefixtures("ideal", "kept_tuning")

PREDICT = ["predict", "googlenet-k80", "--cluster", "k80-10gbe-ring"]
TUNE = ["tune", "resnet50-v100", "--cluster", "v100-10gbe"]


def run(*arguments):
    return invoke(arguments)


def run_json(*arguments):
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_scaling_factors_of_the_reference_table():
    """Reference results of docs/reference/model.md, to +-0.002, and MG-WFBP's bucket counts."""
    names = ("wfbp", "single", "mg-wfbp", "optimal")
    expected = {
        8: (0.871, 0.594, 0.969, 0.970),
        16: (0.742, 0.576, 0.915, 0.916),
        32: (0.598, 0.567, 0.848, 0.880),
        64: (0.437, 0.560, 0.755, 0.837),
        128: (0.286, 0.552, 0.582, 0.781),
        256: (0.169, 0.540, 0.540, 0.726),
        512: (0.093, 0.519, 0.519, 0.640),
        1024: (0.049, 0.481, 0.481, 0.540),
    }
    plans = [word for name in names for word in ("--plan", name)]
    sweep = run_json(*PREDICT, "--workers", ",".join(map(str, expected)), *plans)["sweep"]
    assert [entry["workers"] for entry in sweep] == list(expected)
    for entry in sweep:
        rows = {row["plan"]: row for row in entry["predictions"]}
        found = [rows[name]["scaling_factor"] for name in names]
        assert found == pytest.approx(expected[entry["workers"]], abs=0.002)
    counts = [row["buckets"] for entry in sweep for row in entry["predictions"] if row["plan"] == "mg-wfbp"]
    assert counts == [6, 6, 5, 3, 2, 1, 1, 1]


def test_predict_json_is_the_contract():
    document = run_json(*PREDICT, "--workers", 16)
    assert {"schema_version", "workload", "cluster", "workers", "compute_time_s", "lower_bound_s"} <= set(document)
    assert document["schema_version"] == 1
    assert [row["plan"] for row in document["predictions"]] == list(STOCK_PLANS)
    for row in document["predictions"]:
        assert row["engine"] == "recursion"
        assert row["iteration_time_s"] >= document["lower_bound_s"]
        assert row["exposed_communication_s"] == pytest.approx(row["iteration_time_s"] - document["compute_time_s"])
        assert row["scaling_factor"] == pytest.approx(document["compute_time_s"] / row["iteration_time_s"])


def test_bucket_sizes_are_listed_where_they_are_asked_for():
    """In JSON and CSV always; on screen once for all worker counts with the same, in the order of the plan."""
    asked = [*PREDICT, "--workers", "8,16", "--plan", "ddp", "--plan", "mg-wfbp", "--plan", "wfbp"]
    sweep = run_json(*asked)["sweep"]
    for entry in sweep:
        for row in entry["predictions"]:
            assert len(row["bucket_sizes_bytes"]) == row["buckets"]
            assert sum(row["bucket_sizes_bytes"]) == osf.load_workload("googlenet-k80").gradient_bytes
    rows = list(csv.DictReader(io.StringIO(run(*asked, "-f", "csv").stdout)))
    sizes = sweep[0]["predictions"][0]["bucket_sizes_bytes"]
    assert [int(size) for size in rows[0]["bucket_sizes_bytes"].split()] == sizes
    shown = " ".join(run(*asked, "--buckets").stdout.split())
    assert f"ddp: {len(sizes)} buckets: {', '.join(map(show_bytes, sizes))}." in shown
    for entry in sweep:
        assert f"mg-wfbp with {entry['workers']} workers: {entry['predictions'][1]['buckets']} bucket" in shown
    assert "wfbp: 64 buckets of " in shown
    assert "ddp: " not in run(*asked).stdout


def test_predict_by_the_engine_osf():
    """Its own plans where none is asked for, in ours as well; no band, since none was made for it, and a caveat."""
    document = run_json(*PREDICT, "--workers", 16, "--engine", "osf")
    assert [row["plan"] for row in document["predictions"]] == list(osf.ENGINES["osf"].plans)
    for row in document["predictions"]:
        assert row["engine"] == "osf"
        assert row["error_band"] is None
        assert "a reconstruction" in row["notes"][-1]
        assert row["iteration_time_s"] >= document["lower_bound_s"]
    plans = [word for row in document["predictions"] for word in ("--plan", row["plan"])]
    ours = run_json(*PREDICT, "--workers", 16, *plans)["predictions"]
    assert [row["iteration_time_s"] for row in ours] == [row["iteration_time_s"] for row in document["predictions"]]
    assert {row["engine"] for row in ours} == {"recursion"}
    table = run(*PREDICT, "--workers", "16,32", "--engine", "osf").stdout
    assert "reconstruction" in table


def test_tune_json_is_the_contract(tmp_path):
    document = run_json(*TUNE, "--workers", 64)
    assert document["target"] == "ddp"
    assert document["improvement"] is True
    assert document["gap"] == pytest.approx(document["tuned_iteration_time_s"] / document["lower_bound_s"] - 1)
    assert document["optimal_iteration_time_s"] <= document["tuned_iteration_time_s"]
    assert document["tuned_iteration_time_s"] < document["default_iteration_time_s"]
    sizes = [sum(block["bytes"] for block in bucket["blocks"]) for bucket in document["plan"]["buckets"]]
    assert [int(cap * 2**20) for cap in document["config"]["bucket_cap_mb_list"]] == sizes
    assert "bucket_cap_mb_list" in document["rendered"]


@pytest.mark.parametrize("target", ["ddp", "horovod", "fsdp2"])
def test_what_has_no_gradients_is_not_tuned(tmp_path, target):
    """A trace without record_shapes=True gives such a workload; to keep the default would be no advice."""
    osf.save(osf.Workload("traced", (osf.Layer("input", 1e-3, 1e-3, 0),)), tmp_path / "traced.json")
    settings = tmp_path / "settings.txt"
    words = ["tune", str(tmp_path / "traced.json"), "--cluster", "v100-10gbe", "--workers", "4", "--for", target]
    result = invoke([*words, "-o", str(settings)])
    assert result.exit_code == 1
    assert "no gradient of 'traced' has a size, so that there is nothing to tune: record a trace" in result.stderr
    assert not settings.exists()


def test_the_output_of_tune_is_a_plan_that_predict_reads(tmp_path):
    plan = tmp_path / "plan.json"
    assert run(*TUNE, "--workers", 64, "--format", "json", "-o", plan).exit_code == 0
    tuned = json.loads(plan.read_text())["tuned_iteration_time_s"]
    document = run_json("predict", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", 64, "--plan", plan)
    assert document["predictions"][0]["iteration_time_s"] == tuned
    assert document["predictions"][0]["plan"] == str(plan)


def test_no_improvement_is_said_in_words_and_the_plan_still_emitted():
    """One worker has nothing to communicate, so there is nothing to gain."""
    document = run_json(*TUNE, "--workers", 1)
    assert document["improvement"] is False
    assert document["verdict"].startswith("Keep the default")
    assert document["plan"]["buckets"]
    assert document["config"]["bucket_cap_mb_list"]


def test_one_plan_for_a_range_of_worker_counts():
    document = run_json(*TUNE, "--workers", "8..64")
    assert document["workers"] == [8, 16, 32, 64]
    assert [row["workers"] for row in document["sweep"]] == [8, 16, 32, 64]
    regret = max(row["tuned_iteration_time_s"] / row["optimal_iteration_time_s"] for row in document["sweep"])
    for workers in (8, 16, 32, 64):
        alone = run_json(*TUNE, "--workers", workers)["plan"]
        plan = documents.decode_plan(json.dumps(alone).encode())
        workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
        other = max(
            osf.predict(workload, cluster, plan, row["workers"]).iteration_time / row["optimal_iteration_time_s"]
            for row in document["sweep"]
        )
        assert regret <= other * (1 + 1e-12)


def test_limits_on_buckets():
    document = run_json(*TUNE, "--workers", 64, "--max-bucket", "16MiB")
    sizes = [sum(block["bytes"] for block in bucket["blocks"]) for bucket in document["plan"]["buckets"]]
    assert max(sizes) <= 16 * 2**20
    assert len(run_json(*TUNE, "--workers", 64, "--max-buckets", 2)["plan"]["buckets"]) <= 2


def test_money_and_the_knee():
    document = run_json(
        *PREDICT, "--workers", "8..1024", "--plan", "single", "--samples", 1.28e6, "--price-per-gpu-hour", 2
    )
    for entry in document["sweep"]:
        row = entry["predictions"][0]
        hours = 1.28e6 / (64 * entry["workers"]) * row["iteration_time_s"] / 3600
        assert row["hours"] == pytest.approx(hours)
        assert row["cost"] == pytest.approx(2 * hours * entry["workers"])
    assert document["knee_workers"] == {"single": None}
    slow = run_json(*PREDICT, "--workers", "8..1024", "--plan", "wfbp", "--samples", 1000)
    rows = [(entry["workers"], entry["predictions"][0]) for entry in slow["sweep"]]
    turns = [
        n for (n, row), (_, after) in itertools.pairwise(rows)
        if after["gpu_hours"] / row["gpu_hours"] - 1 > 1 - after["hours"] / row["hours"]
    ]  # fmt: skip
    assert slow["knee_workers"]["wfbp"] == turns[0]
    assert rows[-1][1]["cost"] is None


@pytest.mark.parametrize(
    "command", [[*PREDICT, "--workers", "8,16"], [*TUNE, "--workers", "8,16"], ["list", "clusters"]]
)
def test_all_formats_say_the_same(command):
    document = json.loads(run(*command, "-f", "json").stdout)
    assert yaml.load(run(*command, "-f", "yaml").stdout, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) == document
    assert json.loads(run(*command, "--json").stdout) == document
    rows = list(csv.DictReader(io.StringIO(run(*command, "-f", "csv").stdout)))
    assert rows
    table = run(*command).stdout
    assert table.strip()
    assert "\x1b" not in table
    if command[0] != "list":
        assert {row["workers"] for row in rows} == {"8", "16"}


def test_list_names_the_gpu_of_the_figures():
    document = run_json("list")
    gpus = {row["name"]: row["gpu"] for kind in ("workloads", "clusters") for row in document[kind]}
    for name, gpu in {
        "resnet50-v100": "V100-SXM2-32GB",
        "resnet50-memory": "V100",
        "resnet50-cpu": "none (CPU)",
        "resnet50-pipedream": "not stated",
        "bert-base-seq64-reconstructed": "not stated",
        "googlenet-k80": "K80",
        "b300-node": "B300 SXM",
        "nccl-h100-ndr": "H100",
        "emulated-4x1gbit": "none (CPU)",
        "mg-wfbp-rule-10gbe": "not stated",
    }.items():
        assert gpus[name] == gpu
    assert "batch  GPU" in run("list", "workloads").stdout
    assert "cost model  GPU" in run("list", "clusters").stdout


def test_a_cluster_that_is_faster_than_its_name_says_so():
    text = run("list", "clusters", "v100-10gbe").stdout
    assert "network: 20.28 Gbps per GPU\n" in text
    assert "its line has 20.3 Gbps per GPU, 2 times those of 10GbE" in text
    assert "times those of" not in run("list", "clusters", "v100-56gib").stdout


def test_a_cluster_of_an_unknown_cost_model_is_listed_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "clusters").mkdir()
    osf.save(osf.Cluster("odd", "odd"), tmp_path / "clusters" / "odd.json")
    monkeypatch.setenv("OSFMODEL_PROFILES", str(tmp_path))
    assert next(row for row in run_json("list", "clusters")["clusters"] if row["name"] == "odd")["network"] is None
    assert "network:\n" in run("list", "clusters", "odd").stdout


def test_list_shows_sources():
    document = run_json("list")
    assert {"workloads", "clusters", "plans", "targets", "engines"} <= set(document)
    for kind in ("workloads", "clusters"):
        for row in document[kind]:
            assert row["source"]
            assert row["conditions"]
            assert row["licence"]
    text = run("list", "clusters").stdout
    for row in document["clusters"]:
        assert row["name"] in text
    assert "shyhuai/B-Caffe" in text
    assert "a batch script for sbatch" in run("list", "snippets", "slurm").stdout
    for kind in ("plans", "targets", "engines", "cost-models", "snippets"):
        assert all(row["meaning"] for row in document[kind])


def test_the_examples_of_tune_run(tmp_path, monkeypatch):
    """Every second one of its help: all of them are long, as examples of its page (tests/repository/test_docs.py)."""
    monkeypatch.chdir(tmp_path)
    examples = [
        line.split()[1:] for line in run("tune", "--help").output.splitlines() if line.strip().startswith("osf ")
    ]
    assert examples
    for example in examples[::2]:
        result = invoke(example)
        assert result.exit_code == 0, (example, result.output)


def test_version_and_completion():
    assert run("--version").stdout == f"osf {osf.__version__}\n"
    script = subprocess.run(
        [sys.executable, "-m", "osfmodel"],
        env={**os.environ, "_OSF_COMPLETE": "bash_source"},
        capture_output=True,
        text=True,
    )
    assert "_osf_completion" in script.stdout
    words = {"_OSF_COMPLETE": "bash_complete", "COMP_WORDS": "osf predict googl", "COMP_CWORD": "2"}
    names = subprocess.run(
        [sys.executable, "-m", "osfmodel"], env={**os.environ, **words}, capture_output=True, text=True
    )
    assert names.stdout.strip() == "plain,googlenet-k80\nplain,googlenet-k80-tensors"


@pytest.mark.parametrize(
    ("begun", "completed"),
    [
        ("llama3.2", ["llama3.2-1b:", "llama3.2-3b:"]),
        ("llama3.2-1b:mi", [f"llama3.2-1b:{name}" for name in GPUS if name.startswith("mi")]),
        ("unknown:h", ["unknown:h"]),
    ],
)
def test_words_complete_a_model_and_then_a_gpu(begun, completed):
    assert [item.value for item in WORKLOAD.shell_complete(None, None, begun)] == completed


def test_listings_of_words_have_parameters_and_data_sheets():
    (gpt2,) = run_json("list", "architectures", "gpt2")["architectures"]
    assert (gpt2["parameters"], gpt2["sequence"], gpt2["type"]) == (124_439_808, 1024, "gpt2")
    assert gpt2["source"].startswith("GPT-2 model card")
    (h100,) = run_json("list", "gpus", "h100")["gpus"]
    assert (h100["memory_bytes"], h100["in_node"]) == (80_000_000_000, "nvswitch")
    assert h100["operations_per_s"] == pytest.approx(989.4e12)
    assert h100["types"] == "float32, tf32, float16, bfloat16, float8"
    (bridged,) = run_json("list", "gpus", "a30")["gpus"]
    assert (bridged["memory_bytes"], bridged["in_node"]) == (24_000_000_000, "nvlink-pairs")
    assert [run_json("list", "gpus", one)["gpus"][0]["clock_of"] for one in ("gb300", "gh200", "l40s")] == [
        "b200", "h100", "any",
    ]  # fmt: skip


def test_the_algorithms_of_a_cluster_are_listed_by_size_beside_the_next_best():
    rows = run_json("list", "algorithms", "nccl:h100x8,400Gbps,ib")["algorithms"]
    node = [row for row in rows if (row["collective"], row["workers"]) == ("all_reduce", 8)]
    assert [(row["from_bytes"], row["algorithm"], row["other"]) for row in node] == [
        (2**10, "ring", "tree/LL"), (2**21, "NVLS", "ring/LL"),
    ]  # fmt: skip
    assert all(row["latency_s"] < row["time_s"] <= (row["other_time_s"] or math.inf) for row in rows)
    assert {row["workers"] for row in rows} == {8, 16, 64}


def test_clusters_without_algorithms_are_refused_with_the_reason():
    for words, said in {
        (): ": give a cluster that nccl prices, such as nccl:h100x8,400Gbps,ib",
        ("v100-10gbe",): " v100-10gbe: it is priced by ring (ring over one kind of link), not by the model of NCCL: "
        "describe it as nccl:GPUxGPUS_PER_NODE,RATE, as nccl:h100x8,400Gbps,ib",
        (
            "h100-node",
        ): " h100-node: it is priced by tabulated (a measured size -> time table per worker count), not by "
        "the model of NCCL: its machines are nccl:h100x8",
    }.items():
        refused = run("list", "algorithms", *words)
        assert (refused.exit_code, refused.stderr) == (2, f"osf: osf list algorithms{said}\n")


@pytest.mark.parametrize("ending", [".xyz", ".md", ".toml"])
def test_an_unknown_ending_is_refused_with_those_that_are_known(ending, tmp_path):
    """It was written as a table."""
    path = tmp_path / f"gpus{ending}"
    said = f"-o {path}: nothing is written as {ending}: name it .json, .yaml, .csv or .txt, or give --format too\n"
    refused = run("list", "gpus", "-o", str(path))
    assert (refused.exit_code, refused.stderr) == (2, f"osf: {said}")
    assert run("list", "gpus", "-o", str(path), "--format", "table").exit_code == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", [4]), ("4,8", [4, 8]), ("4..16", [4, 8, 16]), ("3..10", [3, 6, 10]), ("5..5", [5]), ("2,2..4", [2, 4])],
)
def test_worker_counts(text, expected, small_cluster):
    assert parse_workers(text, small_cluster) == expected


def test_a_range_over_a_measured_cluster_takes_what_was_measured(table_cluster):
    assert parse_workers("2..64", table_cluster) == [2, 4]
    with pytest.raises(osf.CostError, match="measured with 2, 4"):
        parse_workers("5..64", table_cluster)


def test_a_range_says_what_it_left_out():
    result = run(
        "predict", "resnet50-v100", "--cluster", "azure-a100-hdr", "--workers", "2..64", "--plan", "ddp", "--json"
    )
    assert [entry["workers"] for entry in json.loads(result.stdout)["sweep"]] == [2, 4, 8, 32, 64]
    assert "left out: 16" in result.stderr


def test_a_repeated_plan_does_not_mix_up_the_money():
    sweep = run_json(*PREDICT, "--workers", "8,16", "--plan", "ddp", "--plan", "ddp", "--samples", "1M")["sweep"]
    for entry in sweep:
        (row,) = entry["predictions"]
        assert row["hours"] == pytest.approx(1e6 / (64 * entry["workers"]) * row["iteration_time_s"] / 3600)


@pytest.mark.parametrize(
    ("name", "first"), [("a.json", "{"), ("a.csv", "workload"), ("a.yaml", "schema"), ("a.txt", "resn")]
)
def test_the_name_of_the_output_says_the_format(tmp_path, name, first):
    assert run(*TUNE, "--workers", 16, "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_text().startswith(first)


def test_code_alone(tmp_path):
    assert run(*TUNE, "--workers", 16, "-o", tmp_path / "plan.py").exit_code == 0
    text = (tmp_path / "plan.py").read_text()
    compile(text, "plan.py", "exec")
    assert text == run(*TUNE, "--workers", 16, "-f", "code").stdout


def test_bare_osf_shows_what_there_is():
    result = run()
    assert result.exit_code == 0
    assert "predict  predict the iteration time under" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_brackets_in_names_are_no_markup(tmp_path):
    (tmp_path / "[").mkdir()
    plan = tmp_path / "[" / "b]x[red].json"
    workload = osf.load_workload("googlenet-k80")
    osf.save(contiguous_plan(workload, [64]), plan)
    for workers in ("8", "8,16"):
        result = run(*PREDICT, "--workers", workers, "--plan", plan, "--samples", "1000")
        assert result.exit_code == 0
    assert "[/b]x[red].json" in "".join(result.stdout.split())


def test_a_broken_profile_does_not_hide_the_others(tmp_path, monkeypatch):
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "broken.json").write_text("{")
    monkeypatch.setenv("OSFMODEL_PROFILES", os.pathsep.join([str(tmp_path), "/no/such/folder"]))
    result = run("list", "clusters")
    assert result.exit_code == 0
    assert "h100-node" in result.stdout
    assert "broken.json: is not valid JSON" in result.stderr
    assert "/no/such/folder, which is not a folder" in result.stderr


def traced(tmp_path):
    """A trace of one rank of a job of two, with no small message that would show a start-up."""
    path = tmp_path / "rank.json"
    path.write_text(traces.text(traces.Job(late=(0, 0), clocks=(0, 0))))
    return path


def test_hints_to_import_a_trace_name_its_nouns_apart(tmp_path):
    path = traced(tmp_path)
    for kind, words in {
        "workload": ["predict", path, "--cluster", "k80-10gbe-ring"],
        "cluster": ["predict", "googlenet-k80", "--cluster", path],
    }.items():
        said = run(*words, "--workers", 8).stderr
        assert f"osf import {path} --kind {kind} -o {tmp_path}/rank-{kind}.json" in said


def test_an_error_in_a_log_names_it(tmp_path):
    log = tmp_path / "hello.txt"
    log.write_text("hello")
    result = run("explain", traced(tmp_path), "--ddp-logging", log)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(f"osf: --ddp-logging {log}: is not DDP's log")


def test_several_traces_after_one_option():
    words = ["report", "googlenet-k80", "--cluster", "k80-10gbe-ring", "--workers", 8]
    result = run(*words, "--trace", "a.gz", "b.gz", "c.gz")
    assert (result.exit_code, "repeat --trace before each, or give their folder" in result.stderr) == (2, True)
    assert "repeat" not in run(*words, "b.gz").stderr


def test_a_factor_that_changes_nothing_is_told(tmp_path):
    cluster = osf.Cluster("flat", "hockney", fits=(osf.AlphaBeta(2, 0.0, 1e-9),))
    osf.save(cluster, tmp_path / "flat.json")
    words = ["predict", "googlenet-k80", "--cluster", tmp_path / "flat.json", "--workers", 2, "--plan", "wfbp"]
    told = "warning: --latency x2 changes nothing: cluster 'flat' has no latency"
    assert told in run(*words, "--latency", "x2").stderr
    assert "changes nothing" not in run(*words, "--bandwidth", "x2").stderr


def test_a_global_batch_of_a_workload_without_one_speaks_of_no_other_option(tmp_path):
    workload = dataclasses.replace(osf.load_workload("googlenet-k80"), batch_size=None)
    osf.save(workload, tmp_path / "w.json")
    words = ["predict", tmp_path / "w.json", "--cluster", "k80-10gbe-ring", "--workers", 8, "--plan", "wfbp"]
    refused = run(*words, "--global-batch", 64)
    assert refused.exit_code != 0
    assert "add batch_size to its file" in refused.stderr
    assert "are taken for" not in refused.stderr
    assert "are taken for --batch-size 64" in run(*words, "--batch-size", 64).stderr


@cache
def listed(kind):
    """The rows of a list."""
    from osfmodel.cli.listing import LISTINGS

    return LISTINGS[kind]().rows


@pytest.mark.parametrize("width", [60, 70, 80])
def test_names_are_whole_on_a_narrow_terminal(width):
    from rich.console import Console

    from osfmodel.cli import listing
    from osfmodel.show import listing as list_screen

    for kind in listing.LISTINGS:
        rows = listed(kind)
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        list_screen.show_list(console, kind, rows)
        text = console.file.getvalue()
        assert [row.name for row in rows if row.name not in text] == []
        assert max(map(len, text.splitlines())) <= width
        if kind == "workloads":
            said = "source" if width == 80 else "source and GPU" if width == 70 else "source, GPU and batch"
            assert f"No room for {said}: widen the terminal, or" in text


def test_one_entry_in_full():
    text = run("list", "clusters", "azure-a100-hdr").stdout
    assert "HDR IB" in text
    assert "licence: MIT" in text


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([*PREDICT, "--workers", "0"], 2, "write counts from 1"),
        ([*PREDICT, "--workers", "-3"], 2, "-3"),
        ([*PREDICT, "--workers", "8..4"], 2, "the smaller first"),
        ([*PREDICT, "--workers", "8GiB"], 2, "write counts such as"),
        ([*PREDICT, "--workers", "many"], 2, "write counts such as"),
        ([*PREDICT], 2, "--workers"),
        ([*PREDICT, "--workers", "8", "--plan", "best"], 2, "unknown plan 'best'"),
        ([*PREDICT, "--workers", "8", "--engine", "ofs"], 2, "did you mean osf?"),
        ([*PREDICT, "--workers", "8", "--engine", "osf", "--channels", "2"], 1, "engine auto; leave --engine out"),
        (
            ["report", *PREDICT[1:], "--workers", "8", "--steps", "5"],
            2,
            "--steps: there is no trace: leave --steps out",
        ),
        ([*PREDICT, "--workers", "4..64", "--global-batch", "100"], 2, "64 workers: give --global-batch 64 or"),
        (["predict", PREDICT[1], "--cluster", "nccl:h100x0", "--workers", "8"], 2, "write h100x1 or more"),
        (["predict", PREDICT[1], "--cluster", "nccl:h100x8,ndr", "--workers", "8"], 2, "did you mean ib?"),
        (["predict", PREDICT[1], "--cluster", "nccl:h100x8,ib", "--workers", "8"], 2, "nccl:h100x8,200Gbps,ib"),
        ([*PREDICT, "--workers", "8", "--plan", "osf:64"], 2, "has no unit"),
        ([*PREDICT, "--workers", "8", "--plan", "none.json"], 1, "none.json cannot be read"),
        ([*PREDICT, "--workers", "8", "--price-per-gpu-hour", "2"], 2, "needs --samples"),
        ([*PREDICT, "--workers", "8", "--samples", "nan"], 2, "write a number above 0"),
        ([*PREDICT, "--workers", "8", "--samples", "5", "--batch-size", "0"], 2, "--batch-size 0"),
        ([*PREDICT, "--workers", "8", "--plan", "optimum"], 2, "did you mean optimal?"),
        ([*PREDICT, "--workers", "8", "--channels", "0"], 2, "--channels"),
        ([*TUNE, "--workers", "8", "--channels", "2"], 2, "tune --for runtime instead"),
        ([*TUNE, "--workers", "8", "--forward-overlap", "--for", "horovod"], 2, "tune --for runtime instead"),
        (
            [*TUNE, "--workers", "8", "--for", "runtime", "--split", "--max-buckets", "3"],
            2,
            "--max-buckets: leave it out, or the rules",
        ),
        ([*TUNE, "--workers", "8", "--effect", "compute-slowdwn"], 2, "did you mean compute_slowdown?"),
        ([*TUNE, "--workers", "8", "--effect", "jitter=2"], 2, "unknown effect"),
        ([*TUNE, "--workers", "8", "--effect", "hook-time=3"], 2, "'3'"),
        (["check", "bcafe"], 2, "did you mean bcaffe?"),
        ([*PREDICT, "--workers", "8", "--json", "-f", "csv"], 2, "contradicts"),
        ([*PREDICT, "--workers", "8", "-f", "code"], 2, "'code' is not one of"),
        (["predict", "googlenet-k80", "--cluster", "hierarchical:8,5us", "--workers", "8"], 2, "GPUS_PER_NODE"),
        (["predict", "googlenet-k80", "--cluster", "rng:5us,1Gbps", "--workers", "8"], 2, "or describe one as in"),
        (["list", "clusters", "nowhere"], 2, "there is no 'nowhere'"),
        (["predict", "gnmt-pipedream", "--cluster", "v100-10gbe", "--workers", "8", "--samples", "5"], 2, "batch size"),
        (["predict", "resnet", "--cluster", "v100-10gbe", "--workers", "8"], 2, "no workload named 'resnet'"),
        (["predict", "none.json", "--cluster", "v100-10gbe", "--workers", "8"], 1, "none.json cannot be read"),
        (
            ["predict", "googlenet-k80", "--cluster", "v100", "--workers", "8"],
            2,
            "did you mean dgx1-v100-roce or nccl-v100-dgx1",
        ),
        (
            ["predict", "googlenet-k80", "--cluster", "azure-a100-hdr", "--workers", "16"],
            1,
            "measured with 2, 4, 8, 32, 64; osf bench measures others",
        ),
        (
            ["predict", "googlenet-k80", "--cluster", "h100-node", "--workers", "16"],
            1,
            "has 8: write --workers 8, or for more nodes say",
        ),
        ([*PREDICT, "--workers", "8", "--cost-model", "tabulated"], 1, "has no such table"),
        (["predict", "googlenet-k80", "--cluster", "ring:50us,10", "--workers", "8"], 2, "no unit"),
        ([*TUNE, "--workers", "8", "--for", "mpi"], 2, "'mpi' is not one of"),
        ([*TUNE, "--workers", "8", "--max-bucket", "25"], 2, "'25' has no unit"),
        ([*TUNE, "--workers", "8", "--max-bucket", "25mB"], 2, "did you mean 25MB or 25MiB"),
        ([*PREDICT, "--workers", "8", "--bandwidth", "2x"], 2, "did you mean x2?"),
        (
            [*PREDICT, "--workers", "8", "--bandwidth", "10Gbis"],
            2,
            "did you mean 10Gbit/s or 10Gbps?; or write a factor",
        ),
        ([*PREDICT, "--workers", "8", "--compression", "fp61"], 2, "did you mean fp16?"),
        ([*PREDICT, "--workers", "8", "--cost-model", "hockny"], 2, "did you mean hockney?"),
        ([*TUNE, "--workers", "8", "--for", "deepsped"], 2, "did you mean deepspeed?"),
        ([*TUNE, "--workers", "8", "--lines", "slrum"], 2, "did you mean slurm?"),
        (["list", "workload"], 2, "did you mean workloads?"),
        (["list", "clusters", "azure-a100"], 2, "did you mean azure-a100-hdr?"),
        (["predict", "resnet50", "--cluster", "v100-10gbe", "--workers", "8"], 2, "resnet50-v100"),
        (
            [*TUNE, "--workers", "8", "--max-bucket", "1B"],
            1,
            "(the largest tensor is 'layer4.2.conv2.weight' with 9.000 MiB): give --max-bucket 9MiB or more",
        ),
        ([*TUNE, "--workers", "8", "--max-buckets", "0"], 2, "1 or more"),
        ([*PREDICT, "--workers", "8", "-o", "/no/such/folder/out.json"], 2, "there is no folder /no/such/folder"),
        (["list", "everything"], 2, "'everything' is not one of"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(arguments, code, message):
    result = run(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("osf: ")
    assert result.stderr.count("\n") == 1


MISTAKES = [
    ([*PREDICT, "--workers", "x"], 2),
    ([*PREDICT, "--workers", "8", "--plan", "nothing"], 2),
    ([*PREDICT, "--workers", "8", "--bandwidth", "2"], 2),
    (["predict", "nothing", "--cluster", "v100-10gbe", "--workers", "8"], 2),
    (["predict", "googlenet-k80", "--cluster", "nothing", "--workers", "8"], 2),
    ([*TUNE, "--workers", "8", "--for", "nothing"], 2),
    ([*TUNE, "--workers", "8", "--memory", "4GiB", "--lines", "slurm"], 2),
    ([*TUNE, "--workers", "8", "--repeat", "2"], 2),
    (["memory", "nothing"], 2),
    (["check", "nothing"], 2),
    (["list", "nothing"], 2),
    (["report", *PREDICT[1:], "--workers", "8", "-o", "report.docx"], 2),
    (["explain", "missing.json", "--format", "nothing"], 2),
    (["import", "missing.log", "--as", "nothing"], 2),
    ([*PREDICT, "--workers", "8", "-o", "missing/out.json"], 2),
    (["list", "-o", "missing/out.json"], 2),
    (["import", "stored.json", "-o", "missing/out.json"], 2),
    ([*PREDICT, "--workers", "8", "--engine", "osf", "--host-lead", "2"], 2),
    (["predict", "googlenet-k80", "--cluster", "azure-a100-hdr", "--workers", "8", "--bandwidth", "9Gbps"], 2),
    (["predict", "missing.json", "--cluster", "v100-10gbe", "--workers", "8"], 1),
    (["predict", "broken.json", "--cluster", "v100-10gbe", "--workers", "8"], 1),
    (["predict", "googlenet-k80", "--cluster", "broken.json", "--workers", "8"], 1),
    ([*PREDICT, "--workers", "8", "--plan", "missing.json"], 1),
    ([*PREDICT, "--workers", "8", "--plan", "broken.json"], 1),
    (["predict", "googlenet-k80", "--cluster", "azure-a100-hdr", "--workers", "16"], 1),
    (["predict", "googlenet-k80", "--cluster", "azure-a100-hdr", "--workers", "9..31"], 1),
    (["predict", "googlenet-k80", "--cluster", "h100-node", "--workers", "16"], 1),
    ([*TUNE, "--workers", "8", "--max-bucket", "1B"], 1),
    (["memory", "broken.json"], 1),
    (["check", "broken.json"], 1),
    (["explain", "missing.json"], 1),
    (["explain", "broken.json"], 1),
    (["import", "missing.log"], 1),
    (["import", "broken.json"], 1),
    (["import", "stored.json", "--kind", "cluster"], 1),
    (["report", "broken.json", "--cluster", "v100-10gbe", "--workers", "8"], 1),
]
"""Command lines, and the status that each ends with: 2 where its own words are wrong, 1 where what they name is."""


@pytest.mark.parametrize(("words", "status"), MISTAKES)
def test_the_exit_status_tells_wrong_words_from_wrong_data(words, status, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"schema_version": 1, "name": ')
    osf.save(osf.load_workload("googlenet-k80"), tmp_path / "stored.json")
    result = run(*words)
    assert result.exit_code == status, result.output
    assert re.fullmatch("osf: [^\n]+\n", result.stderr)


def test_a_plan_for_another_workload_is_refused(tmp_path):
    workload = osf.load_workload("resnet50-v100")
    osf.save(contiguous_plan(workload, [161]), tmp_path / "plan.json")
    result = run(*PREDICT, "--workers", 8, "--plan", tmp_path / "plan.json")
    assert result.exit_code == 1
    assert "for workload 'resnet50-v100', not for 'googlenet-k80'" in result.stderr


def test_settings_of_a_framework_are_no_plan(tmp_path):
    assert run(*TUNE, "--workers", 8, "--for", "deepspeed", "-o", tmp_path / "deepspeed.json").exit_code == 0
    result = run("predict", *TUNE[1:], "--workers", 8, "--plan", tmp_path / "deepspeed.json")
    assert result.exit_code == 1
    assert "deepspeed.json: holds settings of a framework" in result.stderr
    assert "--format json" in result.stderr


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("kind", "place"), [("workload", 1), ("cluster", 3)])
def test_a_trace_in_the_place_of_a_profile_says_how_to_import_it(packed, kind, place, tmp_path):
    content = traces.text(traces.Job()).encode()
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(content) if packed else content)
    arguments = ["predict", "googlenet-k80", "--cluster", "k80-10gbe-ring", "--workers", "8"]
    arguments[place] = tmp_path / "trace.json.gz"
    result = run(*arguments)
    advice = re.search("`osf (import .+ --kind (.+) -o .+)`", result.stderr)
    assert (result.exit_code, advice[2]) == (1, kind)
    folder = run(*(tmp_path if number == place else one for number, one in enumerate(arguments)))
    assert f"osf import {tmp_path} --kind {kind}" in folder.stderr
    if kind == "workload":
        assert run(*advice[1].split()).exit_code == 0
        assert run(*["predict", advice[1].split()[-1], *arguments[2:]]).exit_code == 0


def test_output_files_are_whole_or_not_there(tmp_path):
    target = tmp_path / "out.json"
    assert run(*PREDICT, "--workers", 8, "-f", "json", "-o", target).exit_code == 0
    assert json.loads(target.read_text())["workers"] == 8
    before = target.read_text()
    assert run(*PREDICT, "--workers", 8, "--plan", "best", "-o", target).exit_code == 2
    assert target.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
    (beside := tmp_path / "beside").touch()
    assert target.stat().st_mode == beside.stat().st_mode


def test_a_device_is_written_to_not_replaced():
    assert run(*PREDICT, "--workers", 8, "-o", os.devnull).exit_code == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m osfmodel list -f json | head -c 10"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert result.stderr == ""


def test_heavy_packages_stay_out_of_predict():
    """osf predict runs on numpy: no scipy, cvxpy, torch or matplotlib; and no rich unless a table is shown."""
    code = (
        "import sys\n"
        "from osfmodel.cli import main\n"
        "try:\n"
        "    main(['predict', 'googlenet-k80', '--cluster', 'k80-10gbe-ring', '--workers', '8', '-f', 'json'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = ('scipy', 'cvxpy', 'torch', 'matplotlib', 'rich', 'yaml')\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in heavy), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.covering
@pytest.mark.parametrize("arguments", [[], [*PREDICT, "--workers", "8"], ["list", "plans"]])
@pytest.mark.parametrize("stdout", [">&-", "> /dev/full"])
def test_a_closed_or_full_standard_output_is_one_line(arguments, stdout):
    shell = f"{sys.executable} -m osfmodel {' '.join(arguments)} {stdout}"
    result = subprocess.run(shell, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 1
    assert result.stderr.startswith("osf: cannot write the result: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "example"),
    [(["predict", "googlenet-k80", "--workers", "8"], "--cluster ring:50us,10Gbps"), (PREDICT, "--workers 8")],
)
def test_a_missing_option_comes_with_an_example(arguments, example):
    result = invoke(arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("osf: Missing option '--")
    assert f" For example {example}" in result.stderr
    assert result.stderr.count("\n") == 1


def test_library_and_command_line_agree():
    workload, cluster = osf.load_workload("googlenet-k80"), osf.load_cluster("k80-10gbe-ring")
    document = run_json(*PREDICT, "--workers", 32)
    for row in document["predictions"]:
        assert osf.predict(workload, cluster, row["plan"], 32).iteration_time == row["iteration_time_s"]
    with pytest.raises(osf.UsageError, match="unknown plan"):
        osf.predict(workload, cluster, "fastest", 32)
    with pytest.raises(osf.UsageError, match="load_workload"):
        osf.predict("googlenet-k80", cluster, "ddp", 32)
    with pytest.raises(osf.UsageError, match="load_cluster"):
        osf.tune(workload, "k80-10gbe-ring", 32)
    with pytest.raises(osf.UsageError, match="unknown target"):
        osf.tune(workload, cluster, 32, "mpi")
    with pytest.raises(osf.UsageError, match="no worker count"):
        osf.tune(workload, cluster, [])
    assert np.isfinite(osf.tune(workload, cluster, 32).outcomes[0].gap)


@pytest.mark.parametrize(("plan", "divided"), [("fsdp2", True), ("ddp", False)])
def test_a_factor_above_one_is_explained_by_the_update_that_shards_divide(plan, divided):
    asked = ["predict", "gpt2-xl:h100,bf16", "--cluster", "nccl:h100x8,400Gbps", "--workers", "8", "--plan", plan]
    (found,) = run_json(*asked)["predictions"]
    assert (found["scaling_factor"] > 1) == divided
    assert ("of it the update, which sharded workers divide." in " ".join(run(*asked).stdout.split())) == divided


def test_four_notes_stand_under_a_table_those_to_act_on_first():
    """The others are behind --notes, and all are in JSON."""
    asked = ["scale", "qwen3-30b-a3b:h100", "--cluster", "nccl:h100x8,400Gbps", "--workers", "2048"]
    asked += ["--plan", "fsdp2", "--tp", "2", "--ep", "8"]
    few, every = (run(*asked, *more).stdout.split("\n") for more in ([], ["--notes"]))
    shown, said = ([line for line in lines if line.startswith("Note: ")] for lines in (few, every))
    assert (len(shown), len(said)) == (4, len(run_json(*asked)["notes"]))
    assert shown == said[:4]
    assert f"{len(said) - 4} more notes: --notes" in few
    assert shown[0].startswith("Note: wide error band: ")
    assert not any("more note" in line for line in every)
