"""Real Horovod over gloo on two hosts: ``osf bench`` and ``osf run`` with ``--executor horovod``, and its timelines."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.plan import contiguous_plan
from osfmodel.formats import horovod as files
from osfmodel.formats.source_text import Text
from osfmodel.ledger.check import check
from osfmodel.runtime import horovod as turns_under_horovod
from osfmodel.targets.named_plans import make_plan
from tests.commands import invoke
from tests.live import cluster
from tests.live.launching import finish, start, tiny_workload

if not os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from tests.live import models


def without_horovod():
    """Why these tests cannot be run; empty where they can, or must."""
    if os.environ.get("OSFMODEL_REQUIRE_HOROVOD"):
        return ""
    try:
        import_module("horovod.torch")
    except ImportError as error:
        return f"needs Horovod, which tests/live/build_horovod.sh builds: {error}"
    return ""


WITHOUT = without_horovod()
needs_horovod = pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT or "Horovod is there")
pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("ignore")]
OSF = [sys.executable, "-m", "osfmodel"]
HOROVOD = ["--executor", "horovod"]
SHORT = ["--iterations", "2", "--repeat", "1", "--timeout", "30s"]
THRESHOLDS = ("0B", "512KiB", "1MiB")
CYCLE = "100ms"
"""Much longer than an iteration whose computation is left out, so that one cycle finds all gradients."""
ONE_HOST = {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_WORLD_SIZE": "2"}


@pytest.fixture(scope="module")
def hosts():
    """Two of their own, else this one. Not in real time: the thread that writes a timeline spins."""
    if cluster.unavailable():
        yield cluster.local(2)
        return
    with cluster.emulated(2, "10gbit", real_time=False) as found:
        yield found


def osf_on(hosts, words):
    ended = hosts.run([*OSF, *map(str, words)], timeout=300)
    assert [one.status for one in ended] == [0, 0], ended
    return ended[0]


@pytest.fixture(scope="module")
def wires(hosts, tmp_path_factory):
    """The cluster file of ``osf bench``."""
    path = tmp_path_factory.mktemp("bench") / "wires.json"
    sizes = ["--min-size", "256KiB", "--max-size", "1MiB"]
    osf_on(hosts, ["bench", *HOROVOD, *sizes, "--repeat", "3", "-o", path])
    return path


@pytest.fixture(scope="module")
def runs(hosts, wires, tmp_path_factory):
    """A folder with a replay of hardly any computation, under three settings and a plan's groups, and timelines."""
    folder = tmp_path_factory.mktemp("run")
    workload = tiny_workload(folder, 20)
    osf.save(contiguous_plan(workload, [1, 7, 12, 20]), folder / "plan.json")
    plans = [f"horovod:{threshold},{CYCLE}" for threshold in THRESHOLDS] + [str(folder / "plan.json"), "optimal"]
    words = ["run", folder / "tiny.json", *HOROVOD, "--scale", "0.001", "--cluster", wires, *SHORT]
    words += [word for plan in plans for word in ("--plan", plan)]
    osf_on(hosts, [*words, "--timeline", folder / "timelines", "-o", folder / "runs.json"])
    return folder


def formed(path):
    """Names by group of each whole iteration: not of the first, in which the ranks met and the loop learns the tensors.

    Horovod does not wait for the end of its timeline to be written, so that the last may not be whole.
    """
    found = files.timeline(Text(path.name, path.read_text()))
    assert found.training in (tuple(range(1, 12)), tuple(range(1, 13)))
    return [[group.names for group in found.iterations[place]] for place in found.training]


def timelines(folder):
    """In the order of the plans."""
    return sorted((folder / "timelines").iterdir(), key=lambda path: int(path.name.partition("-")[0]))


@needs_horovod
def test_bench_measures_what_messages_and_the_loop_cost(wires):
    found = osf.load_cluster(wires)
    assert found.library == "gloo"
    (table,) = found.tables
    assert table.workers == 2
    assert list(table.sizes) == [256 << 10, 512 << 10, 1 << 20]
    assert all(time > 0 for time in table.times)
    assert found.effects.fusion_copy >= 0  # of a few messages, it may drown in noise
    assert found.effects.negotiation > 0
    assert found.effects.negotiation_miss > 0


@needs_horovod
def test_every_setting_is_run_stated_and_predicted(runs):
    measured = load_measurements(runs / "runs.json")
    settings = [run.condition("settings") for run in measured]
    assert [run.plan for run in measured[3:]] == ["plan.json", "optimal"]
    assert settings[:3] == ["0B,100ms", "524288B,100ms", "1MiB,100ms"]
    assert ["sent" in dict(run.conditions) for run in measured] == [False, False, False, True, True]
    for run in measured:
        stated = dict(run.conditions)
        assert (stated["executor"], stated["library"], stated["horovod"]) == ("horovod", "gloo", "0.28.1")
        assert (run.workers, len(run.samples), stated["scale"]) == (2, 2, "0.001")
        assert 0 < float(stated["cpu_share"]) <= 1.1
    (checked,) = check([str(runs / "runs.json")])
    assert [row.predicted is not None for row in checked.rows] == [True] * 5, checked.reasons


@needs_horovod
def test_a_cycle_fuses_what_the_policy_says(runs, wires):
    """All that one cycle finds, in the order in which the tensors were first reduced, greedily up to the threshold."""
    workload = osf.load_workload(runs / "tiny.json").scaled(0.001)
    pricing = pricing_of(osf.load_cluster(wires), 2).under({"executor": "horovod"})
    for threshold, path in zip(THRESHOLDS, timelines(runs), strict=False):
        plan = make_plan(f"horovod:{threshold},{CYCLE}", workload, pricing)
        expected = [tuple(block.layer for block in bucket.blocks) for bucket in plan.buckets]
        assert (len(expected) == 20) == (threshold == "0B")
        for groups in formed(path):
            assert groups == expected, threshold


@needs_horovod
def test_groups_form_exactly_the_buckets_of_a_plan(runs):
    """Horovod names the tensors of a group after the first of them."""
    plan = profiles.load_plan(runs / "plan.json")
    buckets = [[block.layer for block in bucket.blocks] for bucket in plan.buckets]
    expected = [tuple(f"{names[0]}_{i}of{len(names)}" for i in range(1, len(names) + 1)) for names in buckets]
    for groups in formed(timelines(runs)[3]):
        assert sorted(groups) == sorted(expected)


@needs_horovod
def test_a_model_trains_alike_under_every_setting(hosts, wires, tmp_path):
    model = models.convolutional()[0]
    sizes = {name: 4 * tensor.numel() for name, tensor in model.named_parameters()}
    workload = osf.Workload("model", tuple(osf.Layer(name, 1e-4, 2e-4, size) for name, size in sizes.items()))
    osf.save(workload, tmp_path / "model.json")
    words = ["run", "tests.live.models:convolutional", *HOROVOD, "--workload", tmp_path / "model.json", "--verify"]
    words += ["--cluster", wires, "--plan", "horovod", "--plan", "horovod:0B,2ms", "--plan", "single", *SHORT]
    ended = osf_on(hosts, [*words, "-o", tmp_path / "runs.json"])
    assert "losses differ from the default's by" in ended.stdout
    measured = load_measurements(tmp_path / "runs.json")
    assert [run.plan for run in measured] == ["horovod", "horovod:0B,2ms", "single"]
    assert all(float(run.condition("loss_difference")) <= 1e-4 for run in measured)
    (checked,) = check([str(tmp_path / "runs.json")])
    assert [row.predicted is not None for row in checked.rows] == [True] * 3, checked.reasons


def processes_in(folder):
    """Ids of the processes with this working directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.resolve() == folder.resolve() and Path(entry.parent, "cmdline").read_bytes():
                found.append(int(entry.parent.name))
        except OSError:  # gone, or another's
            continue
    return found


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@needs_horovod
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="tells what is left by /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_all_that_was_started(tmp_path, victim):
    tiny_workload(tmp_path, 3)
    words = ["run", "tiny.json", *HOROVOD, "--plan", "horovod:0B,1ms", "--plan", "horovod", "-o", "runs.json"]
    started = start([*words, *SHORT, "--iterations", "100000"], 2, tmp_path, **ONE_HOST)
    wait_for(lambda: len(processes_in(tmp_path)) == 4 or any(one.poll() is not None for one in started))
    time.sleep(1)
    started[victim].kill()
    ended = finish(started)
    assert ended[victim].code == -signal.SIGKILL
    other = ended[1 - victim]
    assert other.code == 1
    said = other.stderr.splitlines()[-1]  # which of its processes notices first is a matter of chance
    assert said.startswith(f"osf: rank {1 - victim}: ")
    assert "lost another worker" in said or "Horovod failed on rank" in said or "nothing went on" in said
    wait_for(lambda: not processes_in(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


@needs_horovod
@pytest.mark.parametrize(
    ("factory", "plan", "message", "code"),
    [
        ("nowhere:model", "horovod", "there is no module 'nowhere'", 2),
        ("tests.live.models:convolutional", "single", "the model has no tensor 'layer2', which the plan sends", 1),
    ],
)
def test_what_fails_under_horovod_is_told_by_every_rank(tmp_path, factory, plan, message, code):
    tiny_workload(tmp_path, 3)
    words = ["run", factory, *HOROVOD, "--workload", "tiny.json", "--plan", plan, *SHORT]
    for rank, one in enumerate(finish(start([*words, "-o", "runs.json"], 2, tmp_path, **ONE_HOST))):
        assert one.code == code
        said = one.stderr.splitlines()[-1]
        assert said.startswith(f"osf: rank {rank}: ")
        assert message in said
        assert "(on rank 0 while running repeat 1 of plan" in said
    assert not processes_in(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["tiny.json", "--timeline", "timelines"],
            "--timeline and --compression are Horovod's: give --executor horovod",
        ),
        (["tiny.json", *HOROVOD, "--static-graph"], "options of DDP are given, and Horovod runs the plans"),
        (["tiny.json", *HOROVOD, "--comm-hook"], "options of DDP are given, and Horovod runs the plans"),
        (["tiny.json", *HOROVOD, "--backend", "nccl"], "--executor horovod runs over gloo here"),
        (["a:b", *HOROVOD], "needs the model's profile: give --workload FILE"),
        (["tiny.json", *HOROVOD, "--plan", "horovod:fast"], "Horovod's settings 'fast': write THRESHOLD,CYCLE"),
        (["tiny.json", *HOROVOD, "--plan", "horovod:best"], "plan 'horovod:best' needs prices: give --cluster FILE"),
    ],
)
def test_what_does_not_go_with_horovod_is_said_beforehand(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    tiny_workload(tmp_path, 3)
    result = invoke(["run", "--plan", "horovod", *words, "-o", "runs.json"])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


@pytest.mark.parametrize("command", [["run", "tiny.json", "--plan", "horovod"], ["bench"]])
def test_it_says_where_horovod_is_missing(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    tiny_workload(tmp_path, 3)
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **ONE_HOST}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(turns_under_horovod, "find_spec", lambda name: None)
    result = invoke([*command, *HOROVOD, "-o", "out.json"])
    assert result.exit_code == 2
    assert f"osf {command[0]} --executor horovod needs Horovod built for this PyTorch" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]
