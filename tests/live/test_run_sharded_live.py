"""osf run --executor fsdp2 with several ranks on gloo: collectives as planned, losses as under DDP, clear refusals."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.files.notation import read
from osfmodel.entities.modules import wrapped
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.ledger.check import check
from osfmodel.targets.named_plans import make_plan
from tests.commands import invoke
from tests.live.launching import ranks

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from osfmodel.runtime.sharded import mesh_of, replay_of_groups, shard, sharded_replay_step
from osfmodel.runtime.sharded.communication import SentCollective, ShardedCommunication
from osfmodel.runtime.sharded.run import collectives_of, deviation_of, in_words
from osfmodel.runtime.training.pace import SleepingPace
from tests.runtime.fsdp_models import pretended

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
SHORT = ["--executor", "fsdp2", "--iterations", "2", "--repeat", "1", "--timeout", "30s", "-o", "run.json"]


def blocks_workload():
    """An input without parameters, an embedding, five uneven blocks of which one has another inside, and a head."""
    rows = [("(input)", ()), ("embedding.weight", (31, 9))]
    for number, width in enumerate((10, 22, 7, 16, 5)):
        rows += [(f"layers.{number}.up.weight", (width, 9)), (f"layers.{number}.down.weight", (9, width))]
    rows += [("norm.weight", (9,)), ("(between)", ()), ("head.weight", (31, 9))]
    layers = [
        osf.Layer(name, 1e-4, 2e-4, 4 * shape[0] * (shape[1] if shape[1:] else 1) if shape else 0, shape=shape)
        for name, shape in rows
    ]
    return osf.Workload("blocks", tuple(layers), update_time=2e-4)


@pytest.fixture
def blocks(tmp_path):
    workload = blocks_workload()
    osf.save(workload, tmp_path / "blocks.json")
    return workload


BLOCKS = [(f"layers.{number}",) for number in range(5)]
GROUPINGS = {
    "each": [("embedding",), *BLOCKS],
    "runs": [("layers.0", "layers.1"), ("layers.2", "layers.3", "layers.4"), ("norm", "head")],
    "nested": [*BLOCKS, ("layers.1.up",)],
}


def plans_of(workload, replicas=1, **rules):
    """Groupings with each way to reshard and to gather ahead that fits them, by the name of a file."""
    found = {}
    for name, groups in GROUPINGS.items():
        ahead = (0, 1) if name == "nested" else (2, 3)
        for reshard in (True, False):
            those = [
                ParameterGroup(one, reshard, forward_prefetch=ahead[0], backward_prefetch=ahead[1]) for one in groups
            ]
            found[f"{name}-{reshard}.json"] = wrapped(workload, those, Sharding((), replicas, **rules))
    return found


def run_them(plans, folder, world, words=()):
    for name, plan in plans.items():
        osf.save(plan, folder / name)
    given = [word for name in plans for word in ("--plan", name)]
    ended = ranks(["run", "blocks.json", *given, *words, *SHORT], world, folder)
    assert [one.code for one in ended] == [0] * world, ended
    assert ended[0].stderr == ""
    runs = load_measurements(folder / "run.json")
    assert [run.plan for run in runs] == list(plans)
    return ended[0], {run.plan: run for run in runs}


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_collectives_are_those_planned(blocks, tmp_path, world, asynchronous):
    plans = plans_of(blocks)
    ended, runs = run_them(plans, tmp_path, world, ["--asynchronous"] * asynchronous)
    for name, plan in plans.items():
        ran, expected = runs[name], collectives_of(blocks, plan, world)
        assert ran.condition("buckets_as_planned") == "yes"
        assert ran.condition("collectives") == in_words(expected)
        assert f"{name}: {in_words(expected)}, " in ended.stdout
        assert ran.condition("executor") == "fsdp2"
        assert ran.condition("carried_by").endswith(", one by one" if asynchronous else "that block")
        stated = read(ran.condition("sent"), blocks)
        assert stated == replace(plan, sharding=replace(plan.sharding, asynchronous=asynchronous))
        assert 0 < float(ran.condition("cpu_share")) <= 1.1


@pytest.mark.parametrize("rules", [{}, {"gather_dtype": "bfloat16", "reduce_dtype": "float32"}], ids=["own", "mixed"])
def test_collectives_between_replicas_are_those_planned(blocks, tmp_path, rules):
    plans = plans_of(blocks, replicas=2, **rules)
    _, runs = run_them(plans, tmp_path, 4)
    for name, plan in plans.items():
        assert runs[name].condition("buckets_as_planned") == "yes"
        assert f", {len(plan.buckets)} all_reduce of " in runs[name].condition("collectives")


def test_losses_are_those_of_ddp(tmp_path):
    """So are all gradients, also where reduce-scatters run in the background."""
    words = ["run", "tests.live.models:transformer", "--plan", "fsdp2", "--plan", "fsdp2:keep,ahead=2", "--verify"]
    for form in ([], ["--asynchronous"]):
        ended = ranks([*words, *form, *SHORT], 2, tmp_path)
        assert [one.code for one in ended] == [0, 0], ended
        for run in load_measurements(tmp_path / "run.json"):
            assert float(run.condition("loss_difference")) <= 1e-4
            assert run.condition("buckets_as_planned") == "yes"
            assert 0 < float(run.condition("computation_s")) < 10
            assert 0 < float(run.condition("sharded_computation_s")) < 10


def test_its_runs_are_predicted_from_what_they_state(blocks, tmp_path):
    cluster = "ring:50us,10Gbps"
    run_them({"fsdp2.json": make_plan("fsdp2", blocks, Pricing.free(2))}, tmp_path, 2, ["--cluster", cluster])
    (checked,) = check([str(tmp_path / "run.json")])
    (row,) = checked.rows
    pricing, plan = pricing_of(osf.load_cluster(cluster), 2), make_plan("fsdp2", blocks, Pricing.free(2))
    assert row.predicted == pytest.approx(predict_timeline(blocks, plan, pricing).iteration_time)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plan", "ddp"], "FSDP2 cannot run plan 'ddp': give fsdp2"),
        (["--plan", "fsdp2:bf16", "--asynchronous"], "runs collectives in the background, and converts types"),
        (["--plan", "many.json"], "accumulates 2 micro-batches"),
    ],
)
def test_plans_that_cannot_be_run_are_refused(blocks, tmp_path, words, told):
    plan = wrapped(blocks, [ParameterGroup(BLOCKS[0])], Sharding((), micro_batches=2))
    osf.save(plan, tmp_path / "many.json")
    (ended,) = ranks(["run", "blocks.json", *words, *SHORT], 1, tmp_path)
    assert ended.code != 0
    assert told in ended.stderr
    assert not (tmp_path / "run.json").exists()


def test_a_module_whose_layers_do_not_follow_each_other_cannot_be_replayed():
    layers = [osf.Layer(name, 1, 1, 4) for name in ("layers.0.a", "head", "layers.0.b", "layers.1.a")]
    workload = osf.Workload("apart", tuple(layers))
    plan = make_plan("fsdp2", workload, Pricing.free(2))
    with pytest.raises(osf.PlanError, match=r"the layers of module 'layers\.0' do not follow each other in 'apart'"):
        replay_of_groups(workload, plan, SleepingPace())


def test_a_replay_computes_as_long_as_its_workload(blocks):
    """Backward of what comes before the first parameter included."""
    computed = []
    pace = SleepingPace()
    pace.compute = computed.append
    model = replay_of_groups(blocks, make_plan("fsdp2", blocks, Pricing.free(2)), pace)
    sharded_replay_step(pace, lambda: None, 0.5)(model)
    assert sum(computed) - 0.5 == pytest.approx(blocks.compute_time - blocks.update_time)
    assert [tuple(tensor.shape) for tensor in model.parameters()] == [
        layer.shape for layer in blocks.layers if layer.shape
    ]


def test_waiting_moves_the_timetable_by_as_long_as_it_took(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("osfmodel.runtime.training.pace.time.perf_counter", lambda: now[0])
    pace = SleepingPace()
    pace.start()
    now[0] = 10.5  # half a second late: the host's own work
    with pace.waiting():
        now[0] = 12.0
    assert pace.deadline == 11.5
    with pace.waiting():
        now[0] = 12.0
    assert pace.deadline == 11.5


class Work:
    """A collective that ends when it is awaited."""

    def __init__(self, awaited, name):
        self.awaited, self.name = awaited, name

    def wait(self):
        self.awaited.append(self.name)


def test_as_many_reduce_scatters_are_under_way_as_have_inputs():
    awaited = []
    communication = ShardedCommunication(True, 2, nullcontext)
    for name in "abcd":
        communication.admit(1)
        communication.follow(Work(awaited, name), None)
    assert awaited == ["a", "b"]
    communication.finish()
    assert awaited == ["a", "b", "c", "d"]


def test_nothing_is_sent_in_silence(blocks):
    """Zeros stand for what others would send, and the collectives are those of the plan."""
    plan = make_plan("fsdp2", blocks, Pricing.free(3))
    torch = pytest.importorskip("torch")
    with pretended(3):
        communication, pace = ShardedCommunication(False, 1, nullcontext), SleepingPace()
        model = replay_of_groups(blocks, plan, pace)
        shard(model, plan, blocks, mesh_of(plan.sharding, 3), communication)
        communication.silent = True
        sharded_replay_step(pace, communication.finish, 0.0)(model)
        assert communication.sent == collectives_of(blocks, plan, 3)
        group = next(iter(model.modules()))._get_fsdp_state()._fsdp_param_groups[0]
        for call in (group._all_gather_comm, group._reduce_scatter_comm):
            whole = call.allocate((12,), dtype=torch.float32, device=torch.device("cpu"))
            assert not whole.any()
            nobody = object()  # no process group: whoever sends fails
            if call is group._all_gather_comm:
                assert call(whole, whole[:4], nobody) is None
            else:
                assert call(whole[:4], whole, nobody, op=None) is None


def test_the_first_difference_is_told():
    one, other = SentCollective("all_gather", 8, "float32"), SentCollective("reduce_scatter", 8, "float32")
    assert deviation_of([one, other], [one, other]) == ""
    assert "all_gather of 8 bytes of float32 as collective 2" in deviation_of([one, one], [one, other])
    assert deviation_of([one], [one, other]) == "FSDP2 sent 1 collectives, and the plan has 2"


def test_the_option_is_refused_with_other_executors():
    words = ["run", "resnet50-v100", "--plan", "ddp", "--asynchronous", "-o", "run.json"]
    result = invoke(words)
    assert result.exit_code == 2
    assert "--asynchronous is FSDP2's: give --executor fsdp2" in result.stderr
