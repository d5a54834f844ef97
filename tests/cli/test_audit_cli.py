"""The audit of a job's file: its figures are those of the commands in words, and what is open is asked for."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.test_cli import run, run_json

DATA = Path(__file__).parents[1] / "formats" / "data" / "jobs"
CLUSTER = ("--cluster", "nccl:h100x8,100Gbps,ib")
SMALL = ("--model", "llama3.2-1b,seq2048", *CLUSTER, "--layout", "tp<=2,cp=1,pp=1")
OPTIONS = ("tp", "cp", "pp", "ep", "accumulate")


pytestmark = pytest.mark.usefixtures("kept_tuning")


@pytest.fixture
def audited(kept_tuning):
    return run_json("scale", str(DATA / "zero-2.json"), *SMALL)


def test_figures_are_those_of_the_job_in_words(audited):
    words = shlex.split(audited["command"])[1:]
    (point,) = run_json(*words)["points"]
    now = audited["now"]
    assert {key: now[key] for key in point} == point
    assert (now["workers"], now["batch_size"], now["accumulate"]) == (32, 4, 2)
    assert now["change"] == "as it is"
    assert now["gain"] is None


def test_each_change_is_the_step_of_its_own_command(audited):
    """In one thing alone another, with the same samples in a step; none gains less than the next."""
    now, changes = audited["now"], audited["changes"]
    assert 1 <= len(changes) <= 3
    gains = [one["gain"] for one in changes]
    assert gains == sorted(gains, reverse=True)
    assert gains[-1] > 0
    for one in changes:
        differing = {key for key in (*OPTIONS[:4], "batch_size", "checkpointing", "strategy") if one[key] != now[key]}
        assert len(differing) == 1, one["change"]
        assert one["gain"] == pytest.approx(1 - one["step_time_s"] / now["step_time_s"])
        assert one["gain_low"] < one["gain"] < one["gain_high"]
        assert one["gain_is"] == ("beyond" if one["gain_low"] > 0 else "within")
        assert one["batch_size"] * one["accumulate"] * 32 == one["tp"] * 256
    one = changes[0]
    words = audited["workload"].replace("batch4", f"batch{one['batch_size']}")
    words += "" if one["checkpointing"] == "none" else f",ac={one['checkpointing']}"
    asked = ["scale", words, *CLUSTER, "--workers", "32", "--plan", one["strategy"], "--tp", str(one["tp"])]
    (point,) = run_json(*asked, "--accumulate", str(one["accumulate"]))["points"]
    assert point["step_time_s"] == pytest.approx(one["step_time_s"])


def test_the_best_layout_is_that_of_the_search(audited):
    words = audited["workload"].replace(",batch4", "")
    plans = [part for name in ("ddp", "zero-1", "zero-2", "zero-3") for part in ("--plan", name)]
    asked = ["scale", words, *CLUSTER, "--workers", "32", "--global-batch", "256", *SMALL[4:], *plans]
    assert run_json(*asked)["points"][0]["step_time_s"] == audited["best"]["step_time_s"]
    assert audited["best"]["step_time_s"] <= audited["now"]["step_time_s"]


def test_a_job_that_does_not_fit_is_told_what_does():
    """Changes that make it fit are named whatever they cost."""
    found = run_json("scale", str(DATA / "zero-2.json"), *SMALL, "--memory", "16GiB")
    assert found["now"]["fits"] == "no"
    assert found["changes"]
    assert all(one["fits"] != "no" for one in found["changes"])
    assert found["verdict"].startswith("It does not fit: zero-2:200000000,overlap needs")


def test_options_go_before_the_file():
    found = run_json(
        "scale", str(DATA / "zero-2.json"), *SMALL, "--tp", "2", "--batch-size", "2", "--plan", "ddp", "--workers", "64"
    )  # fmt: skip
    now = found["now"]
    assert (now["tp"], now["batch_size"], now["accumulate"], now["strategy"]) == (2, 2, 4, "ddp")
    assert "--tp 2" in found["command"]


def test_a_table_a_page_and_a_row_for_each_step(audited, tmp_path):
    page, rows = tmp_path / "audit.html", tmp_path / "audit.csv"
    made = run("scale", str(DATA / "zero-2.json"), *SMALL)
    assert "as it is" in made.stdout
    assert "best layout" in made.stdout
    assert "zero-2:200000000,overlap" in made.stdout
    assert "not counted" not in made.stdout
    assert run("scale", str(DATA / "zero-2.json"), *SMALL, "-o", str(page)).exit_code == 0
    assert "osf scale llama3.2-1b:h100" in page.read_text(encoding="utf-8")
    assert run("scale", str(DATA / "zero-2.json"), *SMALL, "-o", str(rows)).exit_code == 0
    assert len(rows.read_text(encoding="utf-8").splitlines()) == 3 + len(audited["changes"])


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("zero-3.json", (), "leaves open what is needed: give the model: --model llama3-8b; the GPU and the network: "
         "--cluster nccl:h100x8,400Gbps,ib; the number of GPUs: --workers 64"),
        ("titan-8b.toml", (), "give the GPU and the network: --cluster nccl:h100x8,400Gbps,ib; the number of GPUs"),
        ("titan-405b.toml", ("--cluster", "v100-10gbe"), "the GPU, which v100-10gbe does not name"),
        ("zero-2.json", (*SMALL, "--workers", "8,16"), "an audit is of one number of GPUs"),
        ("zero-2.json", (*SMALL, "--for", "ddp"), "leave --for out"),
        ("zero-2.json", (*SMALL, "--compute", "x2"), "leave --compute out"),
        ("zero-2.json", (*SMALL, "--tp", "2", "--tp", "4"), "leave all but one --tp out"),
        ("zero-2.json", (*SMALL, "--global-batch", "100"), "--global-batch 128"),
        ("zero-2.json", (*SMALL, "-o", "audit.png"), "an audit has no picture"),
        ("megatron-8b.sh", (*CLUSTER, "--workers", "7"), "7 GPUs cannot be divided into replicas of 2"),
    ],
)  # fmt: skip
def test_what_is_open_or_impossible_is_said_in_a_line(name, more, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run("scale", str(DATA / name), *more)
    assert made.exit_code == 2
    assert said in made.stderr
    assert len(made.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llama3-8b:h100", "--workers", "8"), "Missing option '--cluster'"),
        (("llama3-8b:h100", *CLUSTER), "Missing option '--workers'"),
        (("llama3-8b:h100", *CLUSTER, "--workers", "8", "--model", "gpt2"), "leave --model out"),
    ],
)
def test_a_workload_needs_what_it_needed(words, said):
    made = run("scale", *words)
    assert made.exit_code == 2
    assert said in made.stderr


def test_fields_of_a_configuration_in_words():
    """Other values behind a plus: of an architecture, and of a type's defaults."""
    known = run_json("list", "model", "llama3-8b")["model"]
    sizes = {"num_hidden_layers": 32, "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}
    words = "+".join(["llama", *(f"{name}={value}" for name, value in sizes.items()), "max_position_embeddings=8192"])
    counted = [(one["name"], one["parameters"], one["operations"]) for one in run_json("list", "model", words)["model"]]
    assert counted == [(one["name"], one["parameters"], one["operations"]) for one in known]
    half = run_json("list", "model", "llama3-8b+num_hidden_layers=16")["model"]
    assert half[0]["parameters"] == counted[0][1]
    assert 2 * half[1]["modules"] == known[1]["modules"]
