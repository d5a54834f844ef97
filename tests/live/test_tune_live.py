"""osf tune --live with two ranks on gloo: what it writes, what it recommends, and how it ends when something breaks."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner

import osfmodel as osf
from osfmodel.cli import main
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.ledger.check import check
from osfmodel.runtime.job import NEEDED
from osfmodel.runtime.live.session import Choice
from tests.commands import invoke
from tests.conftest import ROOT
from tests.live.launching import finish, ranks, start

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
SHORT = ["--iterations", "3", "--repeat", "2", "--timeout", "20s", "--backend", "gloo"]
ONLY_DDP = ["--for", "ddp"]
FILES = ["cluster.json", "config.py", "plan.json", "runs.json", "tuned.json", "workload.json"]


@pytest.fixture
def tiny(tmp_path):
    """A workload of six tensors, two milliseconds an iteration."""
    layers = [osf.Layer(f"layer{i}", 1e-4, 2e-4, 4 * (1000 + 9000 * i)) for i in range(6)]
    workload = osf.Workload("tiny", tuple(layers), update_time=1e-4)
    osf.save(workload, tmp_path / "tiny.json")
    return workload


def assert_consistent(folder, ended):
    """Check the files and the lines that every session leaves, whatever it measured."""
    assert [one.code for one in ended] == [0, 0], ended
    assert ended[1].stdout == ""
    assert sorted(path.name for path in folder.iterdir()) == FILES
    runs = load_measurements(folder / "runs.json")
    assert [run.plan for run in runs] == ["ddp", "tuned.json", "ddp"] * 2
    assert [run.condition("repeat") for run in runs] == ["1", "1", "1 again", "2", "2", "2 again"]
    assert {run.condition("buckets_as_planned") for run in runs} == {"yes"}
    (checked,) = check([str(folder / "runs.json")])
    assert all(row.predicted is not None for row in checked.rows), checked
    (beside,) = checked.beside
    assert [turns.repeats for turns in beside.turns] == [4, 2]
    times = [run.iteration_time for run in runs]
    choice = Choice(times[0::3], times[1::3], times[2::3])
    plan, tuned = osf.load_plan(folder / "plan.json"), osf.load_plan(folder / "tuned.json")
    sizes = [bucket.size for bucket in (plan if choice.take_tuned else tuned).buckets]
    assert (not choice.take_tuned) or plan == tuned
    formed = {run.plan: run.condition("buckets") for run in runs}
    chosen = formed["tuned.json" if choice.take_tuned else "ddp"]
    assert [bucket.size for bucket in plan.buckets] == [int(size) for size in chosen.split()]
    assert formed["tuned.json"] == " ".join(map(str, sizes))
    lines = (folder / "config.py").read_text()
    compile(lines, "config.py", "exec")
    assert lines.startswith(f"# {choice.verdict}\n")
    assert ("bucket_cap_mb_list" in lines) == choice.take_tuned
    assert choice.verdict in ended[0].stdout
    assert ended[0].stdout.endswith(lines)
    for word in ("predicted", "measured", "speed-up"):
        assert word in ended[0].stdout


def test_a_workload_on_a_measured_network(tiny, tmp_path):
    ended = ranks(["tune", "tiny.json", "--live", "found", "--scale", "0.5", *SHORT, *ONLY_DDP], 2, tmp_path)
    folder = tmp_path / "found"
    assert_consistent(folder, ended)
    assert osf.load_workload(folder / "workload.json") == tiny
    cluster = osf.load_cluster(folder / "cluster.json")
    assert {table.workers for table in cluster.tables} == {2}
    assert "sleeps" in cluster.source.conditions
    (run, *_) = load_measurements(folder / "runs.json")
    assert (run.workload, run.cluster, run.condition("scale")) == ("workload.json", "cluster.json", "0.5")


def test_a_model_on_a_known_network_and_again_with_its_profile(tmp_path):
    """A second session in the same folder, from what the first one found."""
    words = ["tune", "tests.live.models:convolutional", "--live", "found", *SHORT, *ONLY_DDP]
    folder = tmp_path / "found"
    assert_consistent(folder, ranks([*words, "--cluster", "ring:50us,10Gbps"], 2, tmp_path))
    workload = osf.load_workload(folder / "workload.json")
    assert (workload.name, workload.batch_size) == ("convolutional", 8)
    known = ["--cluster", "found/cluster.json", "--workload", "found/workload.json"]
    ended = ranks([*words, *known], 2, tmp_path, OMP_NUM_THREADS="2")
    assert_consistent(folder, ended)
    told = "osf: warning: 'convolutional' was measured with 1 CPU threads, and a rank has 2, "
    assert [told in one.stderr for one in ended] == [True, False]
    assert osf.load_workload(folder / "workload.json") == workload


def test_little_to_gain_is_said_before_running(tmp_path):
    osf.save(osf.Workload("one", (osf.Layer("a", 1e-3, 1e-3, 400_000),)), tmp_path / "one.json")
    words = ["tune", "one.json", "--live", "found", "--cluster", "ring:50us,10Gbps", *SHORT]
    ended = ranks(words, 2, tmp_path)
    assert [one.code for one in ended] == [0, 0], ended
    assert "osf: little to gain: 0.0% less time than the default is predicted" in ended[0].stderr
    assert ended[1].stderr == ""


@pytest.mark.parametrize("subject", ["tiny.json", "tests.live.models:convolutional"])
def test_a_plan_of_the_executor_is_measured_beside(tiny, tmp_path, subject):
    """The plan is measured if it promises a gain, as forward overlap does on a slow network."""
    words = ["tune", subject, "--live", "found", "--cluster", "ring:50us,1Gbps", *SHORT]
    ended = ranks(words, 2, tmp_path)
    assert [one.code for one in ended] == [0, 0], ended
    folder = tmp_path / "found"
    runs = load_measurements(folder / "runs.json")
    promised = (folder / "executed.json").exists()
    assert promised or "tests" in subject  # a model's own times may be taken beside other load, which lengthens them
    beside = ["runtime:executed.json"] if promised else []
    turns = ["ddp", "tuned.json", *beside, "ddp"]
    assert [run.plan for run in runs] == turns * 2
    times, every = [run.iteration_time for run in runs], len(turns)
    executed = times[2::every] if promised else ()
    choice = Choice(times[0::every], times[1::every], times[every - 1 :: every], executed=executed)
    assert choice.verdict in ended[0].stdout
    low, high = choice.gain_interval
    assert f"measured {choice.gain:.1%} ({low:.1%} to {high:.1%} by 2 repeats)" in ended[0].stdout
    said = [dict(run.conditions).get("promised_gain") for run in runs]
    assert [found is not None for found in said] == [run.plan == "tuned.json" for run in runs]
    shown = re.search(r"promised (-?[0-9.]+)%", ended[0].stdout)
    assert shown
    assert float(shown[1]) == pytest.approx(100 * float(said[1].split()[0]), abs=0.11)  # both are rounded
    lines = (folder / "config.py").read_text()
    assert lines.startswith(f"# {choice.verdict}\n")
    assert ("osf.execute(" in lines) == choice.take_executor
    taken = "executed.json" if choice.take_executor else "tuned.json" if choice.take_tuned else None
    assert taken is None or osf.load_plan(folder / "plan.json") == osf.load_plan(folder / taken)
    (checked,) = check([str(folder / "runs.json")])
    assert all(row.predicted is not None for row in checked.rows), checked


def test_a_model_that_the_executor_cannot_train_is_tuned_for_ddp(tmp_path):
    words = ["tune", "tests.live.models:partly_used", "--live", "found", "--cluster", "ring:50us,1Gbps", *SHORT]
    ended = ranks(words, 2, tmp_path)
    assert ["osf: the executor is left out: " in one.stderr for one in ended] == [True, False], ended


@pytest.mark.parametrize(
    ("choice", "recommended", "verdict"),
    [
        (Choice([100], [90], [100], "", [80]), "executor", "20.0% less time than the default, 11.1% less than DDP's"),
        (Choice([100], [100], [100], "", [80]), "executor", "it took 20.0% less time than the default, beyond"),
        (
            Choice([100], [80], [100], "", [79.9]),
            "tuned",
            "The executor's plan took 0.1% less time than DDP's tuned plan.",
        ),
        (
            Choice([100], [100], [100], "", [110]),
            "default",
            "The executor's plan took 10.0% more time than the default.",
        ),
        (Choice([100], [90], [104], "", [89]), "tuned", "took 1.1% less time than DDP's tuned plan."),
    ],
)
def test_the_executor_is_recommended_only_where_it_wins(choice, recommended, verdict):
    starts = {"executor": "Take the executor's plan", "tuned": "Take the tuned plan", "default": "Keep the default"}
    assert choice.verdict.startswith(starts[recommended])
    assert verdict in choice.verdict
    assert choice.take_executor == (recommended == "executor")
    even = replace(choice, executed=[choice.stock_time])
    assert not even.take_executor


def test_the_interval_of_a_measured_gain():
    """Student's t: for gains of 8, 10 and 12 % the half width is 2.920 times 2 % over the root of 3."""
    assert Choice([100], [90], [100]).gain_interval is None
    low, high = Choice([100, 99, 100], [92, 90, 88], [100, 101, 100]).gain_interval
    assert (low, high) == pytest.approx((0.1 - 0.033717, 0.1 + 0.033717), abs=1e-5)


@pytest.mark.parametrize(
    ("choice", "taken", "verdict"),
    [
        (
            Choice([100, 101, 100], [90, 91, 90], [100, 100, 101]),
            True,
            "it took 10.0% less time, beyond the noise of 1.0%",
        ),
        (Choice([100, 101, 100], [103, 103, 103], [100, 100, 101]), False, "the tuned plan was 3.0% slower"),
        (Choice([100, 104, 100], [99, 99, 99], [104, 100, 104]), False, "2.9% less time, within the noise of 3.8%"),
        (
            Choice([100, 100, 100], [99.8, 99.8, 99.8], [100, 100, 100]),
            False,
            "0.2% less time, within the noise of 0.5%",
        ),
        (Choice([100, 100, 100], [96, 96, 96], [95, 95, 95]), False, "Keep the default"),
        (Choice([100], [80], [100], "other buckets"), False, "was not formed (other buckets)"),
    ],
)
def test_what_is_recommended(choice, taken, verdict):
    """Never what is slower, or faster by no more than the default is than itself."""
    assert choice.take_tuned == taken
    assert verdict in choice.verdict
    assert choice.verdict.startswith("Take the tuned plan" if taken else "Keep the default")
    slower = replace(choice, tuned=[1.01 * max(*choice.default, *choice.again)] * len(choice.tuned))
    assert not slower.take_tuned


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--live", "f", "--workers", "2"], "--workers does not work with --live: it is the number of ranks"),
        (["--live", "f", "--for", "horovod"], "--for horovod does not work with --live"),
        (["--live", "f", "--split"], "--split does not work with --live"),
        (["--live", "f", "--json"], "--json does not work with --live"),
        (["--live", "f", "--workload", "w.json"], "a replay has its WORKLOAD already"),
        (["--live", "f", "--scale", "0"], "write a factor above 0"),
        (["--live", "tiny.json"], "tiny.json: is the file that is read"),
        (["--live", "f"], "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start this under"),
        (["--cluster", "ring:1us,1Gbps", "--workers", "2", "--repeat", "2"], "--repeat works only with --live FOLDER"),
        (["--cluster", "ring:1us,1Gbps"], "Missing option '--workers'"),
        (["--workers", "2"], "Missing option '--cluster'"),
    ],
)
def test_bad_requests_are_refused_before_ranks_meet(tiny, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    for name in NEEDED:
        monkeypatch.delenv(name, raising=False)
    result = invoke(["tune", "tiny.json", *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "f").exists()


def test_scale_is_for_replays_and_one_rank_is_too_few(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(["tune", "a.b:c", "--live", "f", "--scale", "2"])
    assert "--scale is for replays" in result.stderr
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    result = CliRunner(env=alone).invoke(main, ["tune", "tiny.json", "--live", "f"])
    assert (result.exit_code, "needs at least 2 ranks" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.json"], "nowhere.json cannot be read"),
        (["tests.live.models:failing"], "the forward failed: ValueError: shapes do not fit"),
        (["tests.live.models:already_wrapped", "--cluster", "ring:1us,1Gbps"], "FullyShardedDataParallel|FSDP"),
        (["tiny.json", "--cluster", "nowhere.json"], "nowhere.json cannot be read"),
    ],
)
def test_every_rank_says_why_it_refuses(tiny, tmp_path, words, message):
    for number, one in enumerate(ranks(["tune", *words, "--live", "found", *SHORT], 2, tmp_path)):
        assert one.code in (1, 2)
        line = one.stderr.splitlines()[-1]
        assert line.startswith(f"osf: rank {number}: ")
        assert re.search(message, line), line
        assert "Traceback" not in one.stderr
    assert not (tmp_path / "found" / "plan.json").exists()


def running(tmp_path):
    """Ranks in the middle of a session that would last for hours, with a turn finished."""
    words = ["tune", "tiny.json", "--live", "found", "--cluster", "ring:50us,10Gbps", "--iterations", "20"]
    started = start([*words, "--repeat", "100000", "--timeout", "20s", "--backend", "gloo"], 2, tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "found" / "runs.json").exists() and all(one.poll() is None for one in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return started


def test_a_killed_rank_ends_the_others_and_what_was_found_is_kept(tiny, tmp_path):
    started = running(tmp_path)
    started[1].kill()
    first, second = finish(started)
    assert (first.code, second.code) == (1, -signal.SIGKILL)
    line = first.stderr.splitlines()[-1]
    assert line.startswith("osf: rank 0: lost another worker while running repeat ")
    assert "in found there are workload.json, cluster.json, tuned.json, runs.json" in line
    folder = tmp_path / "found"
    assert osf.load_cluster(folder / "cluster.json").name
    assert len(load_measurements(folder / "runs.json")) >= 1
    assert sorted(path.name for path in folder.iterdir()) == [
        "cluster.json",
        "runs.json",
        "tuned.json",
        "workload.json",
    ]


def test_a_signal_ends_every_rank(tiny, tmp_path):
    started = running(tmp_path)
    for process in started:
        process.send_signal(signal.SIGINT)
    ended = finish(started)
    assert 130 in [one.code for one in ended]
    for rank, one in enumerate(ended):
        assert one.code in (130, 1)
        assert one.stderr.splitlines()[-1].startswith(f"osf: rank {rank}: ")


AT_FOURTH = """
import os, sys
from osfmodel.cli import main
from osfmodel.runtime import bench

measured, real = [], bench._sample

def sample(*arguments):
    measured.append(1)
    if len(measured) == 4 and os.environ["RANK"] == "1":
        os._exit(9)
    return real(*arguments)

bench._sample = sample
sys.argv = ["osf", *sys.argv[1:]]
main()
"""


def test_a_rank_that_dies_while_the_network_is_measured(tiny, tmp_path):
    """The measurements up to then are kept, and the workload."""
    import subprocess

    words = [sys.executable, "-c", AT_FOURTH, "tune", "tiny.json", "--live", "found", *SHORT]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    done = subprocess.run([*launcher, *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=90, check=False)  # fmt: skip
    assert done.returncode != 0
    assert "in found there are workload.json, cluster.partial.json" in done.stderr
    assert not (tmp_path / "found" / "cluster.json").exists()
    assert "stopped before the end" in osf.load_cluster(tmp_path / "found" / "cluster.partial.json").source.conditions
    assert osf.load_workload(tmp_path / "found" / "workload.json") == tiny
