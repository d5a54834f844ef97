"""osf run with plans that the executor runs, beside DDP, with two ranks on gloo."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.engine import simulate
from osfmodel.engine.strategies import strategy_of
from osfmodel.entities.files import notation
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.plan import contiguous_plan
from osfmodel.ledger.check import check
from tests.commands import invoke
from tests.live.launching import ranks, tiny_workload

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from osfmodel.runtime.training import executed
from osfmodel.runtime.training.replayed_model import SleepingPace
from osfmodel.runtime.training.subjects import replayed
from tests.live import models

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
SHORT = ["--iterations", "2", "--repeat", "2", "--timeout", "20s"]
CLUSTER = "ring:50us,10Gbps"


@pytest.fixture
def tiny(tmp_path):
    return tiny_workload(tmp_path, 9)


def beyond_ddp(workload):
    """Plans that DDP cannot form, each with what it wants."""
    plain = contiguous_plan(workload, [2, 5, 9])
    first, rest = plain.buckets[0], plain.buckets[1:]
    name, size = first.blocks[0].layer, first.blocks[0].bytes
    cut = osf.Bucket((osf.Block(name, 0, 400),)), osf.Bucket((osf.Block(name, 400, size - 400), *first.blocks[1:]))
    return {
        "overlap.json": replace(plain, forward_overlap=True),
        "cut.json": replace(plain, buckets=(*cut, *rest), channels=2),
        "both.json": replace(plain, buckets=(*cut, *rest), channels=2, forward_overlap=True, strategy="split"),
        "backwards.json": replace(plain, buckets=plain.buckets[::-1]),
    }


def saved(workload, folder):
    plans = beyond_ddp(workload)
    for name, plan in plans.items():
        osf.save(plan, folder / name)
    return plans


def test_every_plan_is_carried_out_beside_ddp(tiny, tmp_path):
    plans = saved(tiny, tmp_path)
    words = [word for name in plans for word in ("--plan", f"runtime:{name}")]
    words += ["--plan", "ddp", "--plan", "runtime:optimal", "--plan", "runtime:byte-scheduler", "--plan", "runtime:ddp"]
    ended = ranks(["run", "tiny.json", *words, *SHORT, "--cluster", CLUSTER, "-o", "run.json"], 2, tmp_path)
    assert [one.code for one in ended] == [0, 0], ended
    assert "runtime:byte-scheduler (fixed order): 9 buckets" in ended[0].stdout
    runs = load_measurements(tmp_path / "run.json")
    assert len(runs) == 16
    for run in runs:
        name = run.plan.removeprefix("runtime:")
        assert dict(run.conditions).get("executor") == (None if run.plan == "ddp" else "runtime")
        assert run.condition("buckets_as_planned") == "yes"
        if name in plans:
            assert notation.read(run.condition("sent"), tiny) == plans[name]
    (checked,) = check([str(tmp_path / "run.json")])
    assert checked.n + checked.unsteady == 16, checked.reasons
    (beside,) = checked.beside
    assert len(beside.turns) == 8
    pricing = pricing_of(osf.load_cluster(CLUSTER), 2)
    predicted = {turns.plan: turns.predicted for turns in beside.turns}
    for name, plan in plans.items():
        assert predicted[f"runtime:{name}"] == pytest.approx(simulate(tiny, plan, pricing).iteration_time)


def test_a_model_trains_as_with_the_default(tmp_path):
    """Also where updates are put off; a profile is found from where the measurements lie."""
    (tmp_path / "out").mkdir()
    model = models.convolutional()[0]
    sizes = {name: 4 * tensor.numel() for name, tensor in model.named_parameters()}
    workload = osf.Workload("model", tuple(osf.Layer(name, 1e-4, 2e-4, size) for name, size in sizes.items()))
    osf.save(workload, tmp_path / "model.json")
    words = ["run", "tests.live.models:convolutional", "--executor", "runtime", "--verify", *SHORT]
    words += ["--workload", "model.json", "--cluster", CLUSTER, "--plan", "wfbp", "--plan", "runtime:byte-scheduler"]
    ended = ranks([*words, "--plan", "asc-wfbp", "-o", "out/run.json"], 2, tmp_path)
    assert [one.code for one in ended] == [0, 0], ended
    runs = load_measurements(tmp_path / "out/run.json")
    assert [run.plan for run in runs[:2]] == ["runtime:wfbp", "runtime:byte-scheduler (fixed order)"]
    assert all(float(run.condition("loss_difference")) <= 1e-4 for run in runs)
    (checked,) = check([str(tmp_path / "out/run.json")])
    assert [row.predicted is not None for row in checked.rows] == [True] * 6, checked.reasons


def test_what_ddp_cannot_form_names_the_executor(tiny, tmp_path):
    saved(tiny, tmp_path)
    for name, wanted in {"cut.json": "2 channels and tensors cut", "backwards.json": "out of ready order"}.items():
        for one in ranks(["run", "tiny.json", "--plan", name, *SHORT, "-o", "run.json"], 2, tmp_path):
            assert one.code == 1
            assert "DDP cannot run plan" in one.stderr
            assert wanted in one.stderr
            assert "--executor runtime can" in one.stderr
            assert len(one.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run.json").exists()


def test_what_the_executor_cannot_do_is_said_by_every_rank(tiny, tmp_path):
    plain = contiguous_plan(tiny, [9])
    osf.save(replace(plain, credit=1), tmp_path / "credit.json")
    osf.save(replace(plain, workload="else"), tmp_path / "else.json")
    words = ["run", "tiny.json", "--executor", "runtime", *SHORT, "--plan", "wfbp", "-o", "run.json"]
    lines = {
        "credit.json": "the executor cannot run plan 'runtime:credit.json': the plan sends by priority",
        "fsdp2": "the executor cannot run plan 'runtime:fsdp2': the plan shards (fully-sharded), which the executor "
        "cannot: run it with osf run --executor fsdp2",
        "zero-1": "the executor cannot run plan 'runtime:zero-1': the plan shards (zero-1), which the executor cannot: "
        "plan without sharding",
        "else.json": "else.json: the plan is for workload 'else', not for 'tiny'",
    }
    for name, line in lines.items():
        for number, one in enumerate(ranks([*words, "--plan", name], 2, tmp_path)):
            assert one.code == 1
            assert one.stderr.strip().startswith(f"osf: rank {number}: {line}")
    assert not (tmp_path / "run.json").exists()


def test_options_of_ddp_are_not_for_the_executor(tmp_path):
    words = ["run", "resnet50-v100", "--plan", "runtime:wfbp", "--static-graph", "-o", str(tmp_path / "run.json")]
    result = invoke(words)
    assert result.exit_code == 2
    assert "options of DDP are given, and every plan is for the executor" in result.stderr


@pytest.fixture
def meeting():
    """A process group of one rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_replay_computes_as_predicted_for_overlap(tiny, meeting, monkeypatch):
    """Backward, then each layer of the next forward after its share of the update, as the simulator has it."""
    plan = replace(contiguous_plan(tiny, [2, 5, 9]), forward_overlap=True)
    subject = replayed(tiny, "cpu")
    executor = osf.execute(subject.model, subject.optimizer, plan, layers=subject.names)
    step = subject.begin(plan, None)
    step(subject.model)
    computed = []
    monkeypatch.setattr(SleepingPace, "compute", lambda pace, seconds: computed.append(seconds))
    for _ in range(3):
        step(subject.model)
    executor.close()
    program = strategy_of(plan).apart(tiny, plan, pricing_of(osf.load_cluster(CLUSTER), 2))
    tasks = [one for one in program.operations if one.stream == "compute" and one.layers]
    backward = [task.startup for task in tasks if task.kind == "backward"]
    forward = [task.startup for task in tasks if task.kind != "backward"]
    assert computed == pytest.approx((forward + backward) * 3 + [tiny.update_time])


def test_a_replay_computes_segments_again_before_their_backward(tiny, meeting, monkeypatch):
    """The executor finds no modules of these names in a replay; under the next plan nothing is computed again."""
    names = [layer.name for layer in tiny.layers]
    tiny = replace(tiny, segments=(osf.Segment("block", names[2], names[4], 1000),))
    plan = replace(contiguous_plan(tiny, [2, 5, 9]), recompute=("block",))
    subject = replayed(tiny, "cpu")
    carried = executed("again", plan, subject)
    assert notation.read(carried.sent, tiny).recompute == ("block",)
    computed = {}
    for one in (plan, replace(plan, recompute=())):
        step, spent = subject.begin(one, None), []
        monkeypatch.setattr(SleepingPace, "compute", lambda pace, seconds, spent=spent: spent.append(seconds))
        step(subject.model)
        computed[one.recompute] = spent
    again, plain = (np.array(spent) for spent in computed.values())
    extra = np.zeros(len(plain))
    extra[len(names) + len(names) - 1 - 4] = sum(layer.forward_time for layer in tiny.layers[2:5])
    assert again - plain == pytest.approx(extra, abs=1e-12)


@pytest.mark.parametrize("density", [None, 0.1])
def test_a_replay_updates_in_backward_where_gradients_are_released(tiny, meeting, monkeypatch, density):
    """Each bucket takes its share of the update once, after the backward of its layers; nothing is left for step."""
    plan = replace(contiguous_plan(tiny, [2, 5, 9]), release=True)
    plan = replace(plan, buckets=tuple(replace(bucket, density=density) for bucket in plan.buckets))
    subject = replayed(tiny, "cpu")
    executor = osf.execute(subject.model, subject.optimizer, plan, layers=subject.names)
    step = subject.begin(plan, None)
    computed = []
    monkeypatch.setattr(SleepingPace, "compute", lambda pace, seconds: computed.append(seconds))
    for _ in range(2):
        step(subject.model)
    executor.close()
    shares = [tiny.update_time * bucket.size / tiny.gradient_bytes for bucket in plan.buckets]
    passes = [layer.forward_time for layer in tiny.layers] + [layer.backward_time for layer in tiny.layers]
    assert sorted(computed) == pytest.approx(sorted(2 * (passes + shares)))
    assert computed[: len(tiny.layers)] == [layer.forward_time for layer in tiny.layers]
    last = len(computed) // 2 - 1
    assert computed[last] == pytest.approx(shares[-1])  # what is ready last arrives after backward
