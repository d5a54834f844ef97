"""Logs of trainers through osf import, compare, check and scale --anchor, and in place of each other."""

from __future__ import annotations

import json

import pytest

import osfmodel as osf
from tests.commands import invoke
from tests.formats import lightning_logs

WORDS = ("llama3-8b:h100,batch1,bf16,seq8192", "--cluster", "nccl:h100x8,400Gbps", "--plan", "fsdp2")


def megatron(seconds, count=12):
    line = " iteration {n}/ 99 | elapsed time per iteration (ms): {time:.1f} | global batch size: 64 |\n"
    return "".join(line.format(n=n, time=1e3 * seconds + n % 3) for n in range(count))


def titan(seconds):
    line = "[titan] 2026-03-05 16:00:{at:06.3f} - root - INFO - step: {n}  loss: 8.0  tps: 7,000  mfu: 40%\n"
    return "".join(line.format(n=n, at=n * seconds).replace(".", ",") for n in range(1, 13))


def state(seconds):
    return json.dumps({"global_step": 100, "log_history": [{"step": 100, "train_runtime": 100 * seconds}]})


LOGS = {"megatron": megatron, "torchtitan": titan, "trainer-state": state, "lightning": lightning_logs.throughput}


def run(*words):
    return invoke(words)


@pytest.fixture
def prediction(tmp_path):
    """A result of one step of 1.2 s, between 1 and 1.5 s."""
    path = tmp_path / "predicted.json"
    point = {"workers": 2, "strategy": "ddp", "step_time_s": 1.2, "error_band": {"low_s": 1.0, "high_s": 1.5}}
    path.write_text(json.dumps({"schema_version": 1, "points": [point]}))
    return path


@pytest.fixture(params=LOGS)
def log(request, tmp_path):
    path = tmp_path / f"{request.param}.log"
    path.write_text(LOGS[request.param](1.25))
    return path


def test_each_log_is_imported_compared_checked_and_an_anchor(tmp_path, log, prediction):
    one = "trainer-state" in log.name
    found = run("import", log, "--workers", 2)
    assert found.exit_code == 0
    assert ("of warm-up left out" in found.stdout) is not one
    assert "1.25" in found.stdout

    again = tmp_path / "again.log"
    again.write_text(log.read_text())
    found = run("compare", log, again, "--format", "json")
    assert json.loads(found.stdout)["verdict"] == ("cannot-tell" if one else "no-difference")

    found = run("check", log, "--prediction", prediction, "--format", "json")
    assert found.exit_code == 0, found.output
    (source,) = json.loads(found.stdout)["sources"]
    assert source["rows"][0]["error"] == pytest.approx(1.2 / 1.25 - 1, rel=0.05)
    assert "inside the prediction's error band, 1.000 s to 1.500 s" in source["rows"][0]["note"]

    found = run("scale", *WORDS, "--workers", 2, "--anchor", f"2={log}", "--format", "json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["points"][0]["step_time_s"] == pytest.approx(1.25, rel=0.15)


def test_logs_of_two_trainers_are_compared_beyond_the_noise(tmp_path):
    for name, text in (("old.log", megatron(1.0)), ("new.log", titan(1.1))):
        (tmp_path / name).write_text(text)
    found = run("compare", tmp_path / "old.log", tmp_path / "new.log")
    assert found.exit_code == 1
    assert found.stdout.startswith("Slower: +9.9% (+7.7% to +12%), 1.001 s -> 1.100 s.")


def test_a_log_is_compared_with_a_prediction_and_its_band(tmp_path, prediction):
    log = tmp_path / "m.log"
    for seconds, code, said in ((1.2, 0, "1.201 s is inside"), (1.8, 1, "1.801 s is outside")):
        log.write_text(megatron(seconds))
        found = run("compare", prediction, log)
        assert found.exit_code == code, found.output
        assert f"{said} the prediction's error band, 1.000 s to 1.500 s" in " ".join(found.stdout.split())
        assert "not stated" not in found.stdout


def test_a_log_is_compared_with_the_run_made_of_it(tmp_path):
    (tmp_path / "m.log").write_text(megatron(1.2, 40))
    assert run("import", tmp_path / "m.log", "--workers", 8, "-o", tmp_path / "run.json").exit_code == 0
    (one,) = osf.load_measurements(tmp_path / "run.json")
    assert (len(one.samples), one.condition("logged"), one.warm_ups) == (36, "40", 4)
    found = run("compare", tmp_path / "m.log", tmp_path / "run.json", "--format", "json")
    told = json.loads(found.stdout)
    assert (told["verdict"], told["kind"], told["conditions"]) == ("no-difference", "comparison of times", [])


def test_checks_fail_beyond_a_tolerance(tmp_path, prediction):
    (tmp_path / "m.log").write_text(megatron(1.8))
    assert run("check", tmp_path / "m.log", "--prediction", prediction, "--tolerance", "30%").exit_code == 1
    assert run("check", tmp_path / "m.log", "--prediction", prediction, "--tolerance", "40%").exit_code == 0


RATES = "CurrSamplesPerSec=180.5, x\n" * 4


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["check", "m.log"], "looks like Megatron-LM's log: compare it with its prediction: `osf check", 1),
        (["check", "--prediction", "one.json"], "--prediction needs what it predicts", 2),
        (["check", "bcaffe", "--prediction", "one.json"], "not with the source bcaffe: leave it out", 2),
        (["check", "m.log", "--prediction", "m.log"], "m.log: is none: give what osf predict or osf scale writes", 2),
        (["check", "m.log", "--prediction", "two.json"], "two.json holds 2 steps, such as ddp, 2 workers: give a", 2),
        (["check", "one.json", "--prediction", "one.json"], "one.json holds predictions: give a log with times", 2),
        (["check", "ds.log", "--prediction", "one.json"], "holds rates of training without the batch of a step", 2),
        (["check", "empty.log", "--prediction", "one.json"], "empty.log: has no step times", 1),
        (["check", "short.log", "--prediction", "one.json"], "short.log: is a log of megatron with one step", 1),
        (["compare", "m.log", "two.json"], "two.json holds 2 steps, such as ddp, 2 workers: give a file of the one", 2),
        (["compare", "m.log", "ds.log"], "m.log holds step times, ", 2),
        (["compare", "ds.log", "tokens.csv"], "has the rate of a sample, tokens.csv that of a token of a GPU", 2),
        (["compare", "short.log", "m.log"], "short.log: is a log of megatron with one step, which is warm-up", 1),
        (["compare", "losses.csv", "m.log"], "losses.csv: is Lightning's CSV without times: add the callback", 1),
        (["compare", "both.log", "m.log"], "both.log: may be megatron or deepspeed: give the log of each by itself", 1),
        (["compare", "m.log", "tiny.csv"], "tiny.csv: a step took 1e-310 s, as none does: check the unit", 1),
        (["import", "ds.log", "--workers", "4"], "give --workers N and --batch-size B, or it as --anchor N=FILE", 1),
        (["import", "empty.log", "--workers", "4"], "empty.log: is empty", 1),
        (["scale", *WORDS, "--workers", "2", "--anchor", "2=empty.log"], "empty.log: is empty", 1),
        (["scale", *WORDS, "--workers", "4", "--anchor", "4=l.csv"], "l.csv is of 2 GPUs: write 2=l.csv", 2),
    ],
)
def test_mistakes_with_logs_are_one_line(tmp_path, monkeypatch, words, said, code):
    monkeypatch.chdir(tmp_path)
    points = [{"workers": n, "strategy": "ddp", "step_time_s": 1.2} for n in (2, 4)]
    for name, text in (
        ("m.log", megatron(1.2)),
        ("short.log", megatron(1.2, 1)),
        ("empty.log", ""),
        ("ds.log", RATES),
        ("tiny.csv", "step_time_s\n1e-310\n1e-310\n"),
        ("both.log", megatron(1.2) + RATES),
        ("tokens.csv", lightning_logs.logged("device/tokens_per_sec", (80, 80, 81))),
        ("losses.csv", lightning_logs.without_times()),
        ("l.csv", lightning_logs.throughput()),
        ("one.json", json.dumps({"schema_version": 1, "points": points[:1]})),
        ("two.json", json.dumps({"schema_version": 1, "points": points})),
    ):
        (tmp_path / name).write_text(text)
    found = run(*words)
    assert found.exit_code == code, found.output
    assert said in found.stderr
    assert found.stderr.count("\n") == 1
    assert found.stdout == ""


def test_a_cut_line_is_a_warning_of_each_command(tmp_path, monkeypatch, prediction):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.log").write_text(megatron(1.2))
    (tmp_path / "cut.log").write_text(megatron(1.2)[:-40])
    for words in (
        ("import", "cut.log", "--workers", 2),
        ("compare", "m.log", "cut.log"),
        ("check", "cut.log", "--prediction", prediction),
        ("scale", *WORDS, "--workers", 2, "--anchor", "2=cut.log"),
    ):
        found = run(*words)
        assert found.exit_code == 0, found.output
        assert "warning: cut.log: line 12: is cut off, as the file ends in it: left out" in found.stderr
