"""osf run with two ranks on gloo: buckets as planned, real losses, and what happens when something breaks."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import time
from dataclasses import replace

import numpy as np
import pytest

import osfmodel as osf
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.plan import contiguous_plan
from tests.commands import invoke
from tests.conftest import ROOT
from tests.live.launching import finish, on_a_terminal, ranks, start, tiny_workload

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from osfmodel.runtime import training
from osfmodel.runtime.job import NEEDED, Place
from osfmodel.runtime.job.measuring import threads_of
from osfmodel.runtime.training import apart, furthest
from osfmodel.runtime.training.ddp_buckets import carried
from osfmodel.runtime.training.replayed_model import replay_layers, replay_model, replay_step
from osfmodel.runtime.training.subjects import trained
from osfmodel.targets.named_plans import make_plan

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
SHORT = ["--iterations", "2", "--timeout", "20s"]


@pytest.fixture
def tiny(tmp_path):
    return tiny_workload(tmp_path, 12)


@pytest.fixture
def alone():
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_gradients_become_ready_in_the_order_of_the_workload(tiny):
    model, pace = replay_model(tiny)
    names, ready = replay_layers(tiny), []
    for name, tensor in zip(names, model.parameters(), strict=True):
        tensor.register_post_accumulate_grad_hook(lambda tensor, name=name: ready.append(name))
        assert tensor.numel() * 4 == next(layer.gradient_bytes for layer in tiny.layers if layer.name == name)
    replay_step(tiny, pace, "cpu")(model)
    assert tuple(ready) == tiny.gradients.names


def test_a_replay_takes_no_less_than_its_time(tiny):
    """A sleep may end late, never early."""
    model, pace = replay_model(tiny)
    step = replay_step(tiny, pace, "cpu")
    begin = time.perf_counter()
    step(model)
    assert time.perf_counter() - begin >= tiny.compute_time


def test_tensors_that_torch_cannot_have_are_refused():
    odd = osf.Workload("odd", (osf.Layer("a", 1, 1, 6),))
    with pytest.raises(osf.DataError, match="not a multiple of float32"):
        replay_model(odd)
    with pytest.raises(osf.UsageError, match="'int8', which torch has no gradients of"):
        replay_model(osf.Workload("odd", (osf.Layer("a", 1, 1, 6, "int8"),)))


def random_plans(workload, folder, count):
    rng = np.random.default_rng(11)
    tensors = len(workload.gradients)
    plans = {}
    for number in range(count):
        inner = rng.choice(np.arange(1, tensors), int(rng.integers(0, tensors - 1)), replace=False)
        plans[f"plan{number}.json"] = contiguous_plan(workload, [*sorted(inner.tolist()), tensors])
        osf.save(plans[f"plan{number}.json"], folder / f"plan{number}.json")
    return plans


@pytest.mark.parametrize("hook", [[], ["--comm-hook"]], ids=["list", "hook"])
def test_the_buckets_are_those_planned(tiny, tmp_path, hook):
    """By DDP's own log, and with the communication hook by what it sent."""
    plans = random_plans(tiny, tmp_path, 5)
    words = [word for name in [*plans, "ddp", "wfbp", "single", "cap:100KiB", "optimal"] for word in ("--plan", name)]
    ended = ranks(
        ["run", "tiny.json", *words, *hook, *SHORT, "--cluster", "ring:50us,10Gbps", "--repeat", "2", "--scale", "0.5",
         "-o", "measured.json"], 2, tmp_path,
    )  # fmt: skip
    assert [one.code for one in ended] == [0, 0], ended
    assert ended[1].stdout == ""
    assert "plan0.json: " in ended[0].stdout
    assert "warning" not in ended[0].stderr
    runs = load_measurements(tmp_path / "measured.json")
    assert len(runs) == 20
    assert [run.plan for run in runs[:10]] == [run.plan for run in runs[10:]]
    for run in runs:
        assert run.condition("buckets_as_planned") == "yes"
        assert len(run.samples) == 2
        assert 0 < float(run.condition("cpu_share")) <= 1.1
        assert (run.workload, run.workers, run.condition("scale")) == ("tiny.json", 2, "0.5")
        sizes = [int(size) for size in run.condition("buckets").split()]
        if run.plan in plans:
            assert sizes == [bucket.size for bucket in plans[run.plan].buckets]
        assert sum(sizes) == tiny.gradient_bytes


@pytest.mark.parametrize("factory", ["convolutional", "transformer"])
def test_losses_follow_the_default(tmp_path, factory):
    words = ["run", f"tests.live.models:{factory}", "--plan", "wfbp", "--plan", "single", "--plan", "cap:20KiB"]
    ended = ranks([*words, "--plan", "ddp", "--verify", *SHORT, "--repeat", "1", "-o", "run.json"], 2, tmp_path)
    assert [one.code for one in ended] == [0, 0], ended
    runs = load_measurements(tmp_path / "run.json")
    assert {run.plan for run in runs} == {"wfbp", "single", "cap:20KiB", "ddp"}
    for run in runs:
        assert float(run.condition("loss_difference")) <= 1e-4
        assert run.condition("buckets_as_planned") == "yes"
        assert 0 < float(run.condition("computation_s")) < 10
    assert len({run.condition("computation_s") for run in runs}) == 1


def test_a_compiled_model_is_run_and_told(tmp_path):
    words = ["run", "tests.live.models:compiled", "--plan", "ddp", "--plan", "single", *SHORT, "--repeat", "1"]
    (ended,) = ranks([*words, "-o", "run.json"], 1, tmp_path)
    assert ended.code == 0, ended
    runs = load_measurements(tmp_path / "run.json")
    assert [run.plan for run in runs] == ["ddp", "single"]
    for run in runs:
        assert "the model is compiled" in run.source.conditions
        told = f"plan {run.plan!r}: DDP formed" in ended.stderr
        assert told == (run.condition("buckets_as_planned") != "yes")


def test_what_the_backend_has_in_flight_is_said_to_be_assumed_where_it_does_not_say(alone, monkeypatch):
    place = Place(0, 1, 0, "here:1")
    assert training._in_flight(place) == str(threads_of("gloo"))
    assert training._in_flight(replace(place, backend="nccl")) == "1"
    monkeypatch.setattr(training, "threads_of", lambda backend: None)
    assert training._in_flight(place) == "2, assumed"


def test_losses_that_are_no_numbers_differ_from_those_that_are(tmp_path):
    words = ["run", "tests.live.models:diverging", "--plan", "wfbp", "--plan", "single", "--verify", *SHORT]
    ended = ranks([*words, "--repeat", "1", "-o", "run.json"], 2, tmp_path)
    assert [one.code for one in ended] == [1, 0], ended
    assert "warning: plan 'wfbp': its losses differ from the default's: one is finite, the other not" in ended[0].stderr
    told = ended[0].stdout.splitlines()
    assert told[0].endswith(", losses differ from the default's: one is finite, the other not")
    assert re.search(r", losses differ from the default's by [0-9.e-]+, relative$", told[1])
    assert {run.plan: run.condition("loss_difference") for run in load_measurements(tmp_path / "run.json")}[
        "wfbp"
    ] == "inf"


@pytest.mark.parametrize(
    ("ours", "difference"),
    [
        ([1.0, 2.0, 4.0], 0.0),
        ([1.0, 2.0, 4.4], 0.1),
        ([1.0, math.nan, 4.4], math.inf),
        ([1.0, 2.0, -math.inf], math.inf),
    ],
)
def test_losses_are_compared_pair_by_pair(ours, difference):
    assert apart(ours, [1.0, 2.0, 4.0]) == pytest.approx(difference)
    assert apart([1.0, 2.0, 4.0], ours) == pytest.approx(difference, rel=0.2)


def test_losses_that_are_both_not_finite_cannot_be_compared():
    assert math.isnan(apart([1.0, math.inf], [1.0, math.inf]))
    assert math.isnan(apart([1.0, math.nan, 2.0], [1.0, math.inf, 2.0]))
    assert apart([math.nan, math.nan], [math.inf, 1.0]) == math.inf
    assert math.isnan(furthest([0.0, math.nan, 0.5]))
    assert furthest([0.0, math.nan, math.inf]) == math.inf
    assert furthest([0.0, 0.5]) == 0.5


def test_buckets_that_are_not_rebuilt_are_told(tmp_path):
    words = ["run", "tests.live.models:partly_used", "--plan", "wfbp", "--find-unused-parameters", *SHORT]
    ended = ranks([*words, "--repeat", "1", "-o", "run.json"], 2, tmp_path)
    assert [one.code for one in ended] == [0, 0], ended
    assert "it did not rebuild them in ready order" in ended[0].stderr
    (run,) = load_measurements(tmp_path / "run.json")
    assert run.condition("buckets_as_planned").startswith("no: DDP formed ")


def test_a_mixture_of_dtypes_is_formed_or_told(tmp_path):
    kinds = ["float32", "bfloat16"] * 4
    layers = [osf.Layer(f"l{i}", 1e-4, 1e-4, 4 * (100 + 37 * i), kind) for i, kind in enumerate(kinds)]
    osf.save(osf.Workload("mixed", tuple(layers)), tmp_path / "mixed.json")
    words = ["run", "mixed.json", "--plan", "wfbp", "--plan", "single", "--plan", "ddp", *SHORT, "--repeat", "1"]
    ended = ranks([*words, "-o", "run.json"], 2, tmp_path)
    assert [one.code for one in ended] == [0, 0], ended
    found = {run.plan: run for run in load_measurements(tmp_path / "run.json")}
    assert found["ddp"].condition("buckets_as_planned") == "yes"
    assert found["single"].condition("buckets_as_planned") == "yes"
    for name, run in found.items():
        told = f"plan {name!r}: DDP formed" in ended[0].stderr
        assert told == (run.condition("buckets_as_planned") != "yes")


def test_plans_beyond_ddp_are_refused_by_name(tiny):
    """Each with what it wants and what to do instead."""
    plain = contiguous_plan(tiny, [4, 12])
    first = plain.buckets[0]
    name, size = first.blocks[0].layer, first.blocks[0].bytes
    pieces = (osf.Block(name, 0, 4), osf.Block(name, 4, size - 4), *first.blocks[1:])
    cases = {
        "wants 2 channels": replace(plain, channels=2),
        "wants the next forward to overlap communication": replace(plain, forward_overlap=True),
        "wants all-reduces split": replace(plain, strategy="split"),
        "wants sending by priority": replace(plain, credit=1),
        "wants a clock that releases": replace(plain, buckets=(replace(first, release_time=1), plain.buckets[1])),
        "wants tensors cut in pieces": replace(plain, buckets=(replace(first, blocks=pieces), plain.buckets[1])),
        "out of ready order": replace(plain, buckets=plain.buckets[::-1]),
        "for workload 'else'": replace(plain, workload="else"),
    }
    for message, plan in cases.items():
        with pytest.raises(osf.PlanError, match=message) as raised:
            carried("mine", plan, tiny)
        assert "plan 'mine'" in str(raised.value)
        assert "osf tune --for ddp" in str(raised.value)
    for name, remedy in {"fsdp2": "--executor fsdp2 can, or run what", "zero-1": "run what"}.items():
        with pytest.raises(osf.PlanError, match=f"DDP cannot run plan '{name}', which wants .*: {remedy}"):
            carried(name, make_plan(name, tiny, Pricing.free(2)), tiny)
    assert carried("mine", plain, tiny).arguments["bucket_cap_mb_list"] == [one.size / 2**20 for one in plain.buckets]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("already_wrapped", "wrapped by FSDP2 or HSDP .fully_shard.*: return the bare model"),
        ("in_ddp", "already wrapped by DataParallel: return the bare model"),
        ("failing", "ValueError: shapes do not fit"),
        ("wrong", r"must return \(model, batch, loss\)"),
        ("raising", "ZeroDivisionError"),
        ("nothing", "has no function 'nothing'"),
    ],
)
def test_models_that_cannot_be_run_are_refused(alone, factory, message):
    with pytest.raises(osf.OsfError, match=message):
        trained(f"tests.live.models:{factory}", "cpu")


def test_every_rank_says_why_it_refuses(tiny, tmp_path):
    words = ["run", "tests.live.models:already_wrapped", "--plan", "ddp", *SHORT, "-o", "run.json"]
    for number, one in enumerate(ranks(words, 2, tmp_path)):
        assert one.code == 2
        assert f"osf: rank {number}: the model is wrapped by FSDP" in one.stderr
        assert "Traceback" not in one.stderr
    assert not (tmp_path / "run.json").exists()


def test_models_that_differ_between_ranks_are_refused(tmp_path):
    words = ["run", "tests.live.models:of_another_width", "--plan", "ddp", *SHORT, "-o", "run.json"]
    told = "rank 1 has a model different from rank 0's: parameter weight of 65x64 float32 where rank 0 has parameter"
    for number, one in enumerate(ranks(words, 2, tmp_path)):
        assert one.code == 2
        assert one.stderr.startswith(f"osf: rank {number}: {told}")
        assert one.stderr.count("\n") == 1
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny.json", "--plan", "optimal"], "plan 'optimal' needs prices: give --cluster FILE"),
        (["a:b", "--plan", "optimal", "--cluster", "c.json"], "needs gradient times: give --workload FILE"),
        (["a:b", "--plan", "ddp", "--scale", "2"], "--scale is for replays"),
        (["tiny.json", "--plan", "ddp", "--verify"], "--verify compares losses, which only a model has"),
        (["tiny.json", "--plan", "ddp", "--workload", "w.json"], "a replay has its WORKLOAD already"),
        (["tiny.json", "--plan", "ddp", "--scale", "0"], "write a factor above 0"),
        (["tiny.json", "--plan", "nonsense"], "unknown plan 'nonsense'"),
        (["tiny.json", "--plan", "ddp", "-o", "run.txt"], "its name must end in .json"),
        (["tiny.json", "--plan", "ddp"], "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start this under"),
    ],
)
def test_bad_requests_are_refused_before_ranks_meet(tiny, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    for name in NEEDED:
        monkeypatch.delenv(name, raising=False)
    result = invoke(["run", *([] if "-o" in words else ["-o", "run.json"]), *words])
    assert result.exit_code == 2
    assert message in result.stderr


def wait_for(condition):
    """Until something is so; a test that waits in vain fails."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(tmp_path, limit="20s"):
    """Ranks in the middle of a run that would last for hours, with a turn finished."""
    words = ["run", "tiny.json", "--plan", "ddp", "--plan", "wfbp", "--iterations", "20", "--repeat", "100000"]
    started = start([*words, "--timeout", limit, "-o", "run.json"], 2, tmp_path)
    wait_for(lambda: (tmp_path / "run.json").exists() or any(one.poll() is not None for one in started))
    return started


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_others(tiny, tmp_path, victim):
    started = running(tmp_path)
    started[victim].kill()
    ended = finish(started)
    assert ended[victim].code == -signal.SIGKILL
    other = ended[1 - victim]
    assert other.code == 1
    assert other.stderr.splitlines()[-1].startswith(
        f"osf: rank {1 - victim}: lost another worker while running repeat "
    )
    assert len(load_measurements(tmp_path / "run.json")) >= 1
    assert not list(tmp_path.glob(".run.json.*"))


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_ends_every_rank_and_keeps_what_there_is(tiny, tmp_path, number, name):
    started = running(tmp_path)
    for process in started:
        process.send_signal(number)
    ended = finish(started)
    for rank, one in enumerate(ended):
        line = one.stderr.splitlines()[-1]
        assert one.code in (130, 1)
        assert line.startswith(f"osf: rank {rank}: ")
        assert f"stopped by {name} while running repeat" in line or "lost another worker" in line
    assert 130 in [one.code for one in ended]
    assert len(load_measurements(tmp_path / "run.json")) >= 1


def test_a_rank_that_hangs_is_not_waited_for_for_ever(tiny, tmp_path):
    started = running(tmp_path, "3s")
    os.kill(started[1].pid, signal.SIGSTOP)
    (other,) = finish(started[:1])
    os.kill(started[1].pid, signal.SIGKILL)
    finish(started[1:])
    assert other.code == 1
    assert "osf: rank 0: " in other.stderr
    assert "turns are in run.json" in other.stderr


def assert_refused(tmp_path, world, message, **changes):
    words = ["run", "tiny.json", "--plan", "ddp", "--iterations", "1", "--timeout", "2s", "-o", "run.json"]
    for one in ranks(words, world, tmp_path, **changes):
        assert one.code in (1, 2)
        assert message in one.stderr
    assert not (tmp_path / "run.json").exists()


def test_a_wrong_world_size(tiny, tmp_path):
    assert_refused(tmp_path, 2, "not all 3 workers met at 127.0.0.1", WORLD_SIZE="3")
    assert_refused(tmp_path, 1, "ranks go from 0 to WORLD_SIZE - 1", RANK="4")


def test_a_port_in_use(tiny, tmp_path):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(tmp_path, 1, "is in use: choose another", MASTER_PORT=port, WORLD_SIZE="2")


def test_nobody_at_the_address(tiny, tmp_path):
    assert_refused(tmp_path, 1, "not all 2 workers met at nowhere.invalid", RANK="1", WORLD_SIZE="2",
            MASTER_ADDR="nowhere.invalid")  # fmt: skip


def test_progress_on_a_terminal(tmp_path):
    words = ["run", "tests.live.models:convolutional", "--plan", "ddp", "--plan", "single", "--verify", *SHORT]
    ended = on_a_terminal([*words, "--repeat", "1", "-o", "run.json"], tmp_path)
    assert ended.code == 0, ended
    told = ended.stderr.splitlines()
    assert all(line.startswith("osf: ") for line in told)
    for begun in (
        "preparing plan single (2 of 2)",
        "comparing the losses of plan 'single'",
        "running repeat 1 of plan 'ddp'",
    ):
        assert told.count(f"osf: {begun}") == 1
    assert [line for line in told if line.startswith(("osf: 1 of 2: ddp ", "osf: 2 of 2: single "))] == told[-3::2]
    assert "single: 1 bucket, " in ended.stdout


def test_under_torchrun(tiny, tmp_path):
    import subprocess
    import sys

    words = ["--standalone", "--nproc-per-node", "2", "-m", "osfmodel", "run", "tiny.json", "--plan", "ddp"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, *SHORT, "--repeat", "1", "-o", "run.json"],
        cwd=tmp_path, env=environment, check=True, timeout=90, capture_output=True,
    )  # fmt: skip
    (run,) = load_measurements(tmp_path / "run.json")
    assert run.workers == 2
