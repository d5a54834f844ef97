"""osf run with two ranks on gloo: buckets as planned, real losses, and what happens when something breaks."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import numpy as np
import pytest

import osfmodel as osf
from osfmodel.measurements import load_measurements
from osfmodel.plan import contiguous_plan
from tests.conftest import ROOT
from tests.live.launching import finish, free_port, ranks, start

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from osfmodel.runtime.replay import replay_layers, replay_model, replay_step

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
SHORT = ["--iterations", "2", "--timeout", "20s"]


@pytest.fixture
def tiny(tmp_path):
    """A workload of 12 tensors and a layer without any, a few milliseconds an iteration."""
    rng = np.random.default_rng(5)
    layers = [osf.Layer(f"layer{i}", 1e-4, 2e-4, int(4 * rng.integers(100, 60_000))) for i in range(12)]
    layers.insert(5, osf.Layer("relu", 1e-4, 1e-4, 0))
    workload = osf.Workload("tiny", tuple(layers), update_time=1e-4)
    osf.save(workload, tmp_path / "tiny.json")
    return workload


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
    with pytest.raises(osf.DataError, match="no whole number of float32"):
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{tiny}", "--plan", "two.json"], "DDP cannot carry out plan 'two.json', which wants 2 channels"),
        (["{tiny}", "--plan", "cut.json"], "which wants tensors cut in pieces"),
        (["{tiny}", "--plan", "byte-scheduler", "--cluster", "ring:50us,10Gbps"], "osf tune --for ddp"),
        (["tests.live.models:already_wrapped", "--plan", "ddp"], "wrapped by FSDP (HSDP"),
        (["tests.live.models:failing", "--plan", "ddp"], "ValueError: shapes do not fit"),
        (["tests.live.models:nothing", "--plan", "ddp"], "has no attribute 'nothing'"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name_on_every_rank(tiny, tmp_path, words, message):
    plan = contiguous_plan(tiny, [4, 12])
    osf.save(plan.under(plan.objective.__class__(channels=2)), tmp_path / "two.json")
    cut = json.loads((tmp_path / "two.json").read_text()) | {"channels": 1}
    block = cut["buckets"][0]["blocks"][0]
    whole, block["bytes"] = block["bytes"], 4
    cut["buckets"][0]["blocks"].insert(1, {"layer": block["layer"], "offset": 4, "bytes": whole - 4})
    (tmp_path / "cut.json").write_text(json.dumps(cut))
    given = [word.replace("{tiny}", "tiny.json") for word in words]
    for number, one in enumerate(ranks(["run", *given, *SHORT, "-o", "run.json"], 2, tmp_path)):
        lines = [line for line in one.stderr.splitlines() if line.startswith("osf: ")]
        assert one.code in (1, 2)
        assert lines[0].startswith(f"osf: rank {number}: ")
        assert message in lines[0] or "lost another worker" in lines[0] or "stopped" in lines[0]
        assert "Traceback" not in one.stderr
    assert not (tmp_path / "run.json").exists()


def wait_for(condition):
    """Until something is so; a test that waits in vain fails."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(tmp_path, world=2, **changes):
    """Ranks in the middle of a run that would last for hours, with a turn finished."""
    words = ["run", "tiny.json", "--plan", "ddp", "--plan", "wfbp", "--iterations", "20", "--repeat", "100000"]
    started = start([*words, "--timeout", "20s", "-o", "run.json"], world, tmp_path, **changes)
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
    assert other.stderr.splitlines()[-1].startswith(f"osf: rank {1 - victim}: lost another worker in repeat ")
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
        assert f"stopped by {name} in repeat" in line or "lost another worker" in line
    assert 130 in [one.code for one in ended]
    assert len(load_measurements(tmp_path / "run.json")) >= 1


def test_a_rank_that_hangs_is_not_waited_for_for_ever(tiny, tmp_path):
    started = running(tmp_path)
    os.kill(started[1].pid, signal.SIGSTOP)
    (other,) = finish(started[:1])
    os.kill(started[1].pid, signal.SIGKILL)
    finish(started[1:])
    assert other.code == 1
    assert "osf: rank 0: " in other.stderr
    assert "turns are in run.json" in other.stderr


def refused(tmp_path, world, message, **changes):
    words = ["run", "tiny.json", "--plan", "ddp", "--iterations", "1", "--timeout", "3s", "-o", "run.json"]
    for one in ranks(words, world, tmp_path, **changes):
        assert one.code in (1, 2)
        assert message in one.stderr
    assert not (tmp_path / "run.json").exists()


def test_a_wrong_world_size(tiny, tmp_path):
    refused(tmp_path, 2, "not all 3 workers met at 127.0.0.1", WORLD_SIZE="3")
    refused(tmp_path, 1, "ranks go from 0 to WORLD_SIZE - 1", RANK="4")


def test_a_port_in_use(tiny, tmp_path):
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(tmp_path, 1, "is in use: choose another", MASTER_PORT=port, WORLD_SIZE="2")


def test_nobody_at_the_address(tiny, tmp_path):
    refused(tmp_path, 1, "not all 2 workers met at 127.0.0.1", RANK="1", WORLD_SIZE="2", MASTER_PORT=str(free_port()))
    refused(tmp_path, 1, "not all 2 workers met at nowhere.invalid", RANK="1", WORLD_SIZE="2",
            MASTER_ADDR="nowhere.invalid")  # fmt: skip


def test_without_a_launcher(tiny, tmp_path):
    refused(tmp_path, 1, "RANK not set: start this under torchrun", RANK="")


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
