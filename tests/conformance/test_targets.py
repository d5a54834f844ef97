"""Every entry of CONFIG_TARGETS, the moment it is listed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from random import Random

import pytest
import yaml

import osfmodel as osf
from osfmodel import CONFIG_TARGETS, PlanError, UsageError, cost_of
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Block, Bucket, Plan, in_one, one_by_one
from osfmodel.solve import SOLVERS, Limits
from osfmodel.solve.solution import MemoryLimit
from osfmodel.targets import stock_targets
from osfmodel.targets.named_plans import FAMILIES, NAMED_PLANS, make_plan, named_plan
from tests.commands import invoke
from tests.problems import asked
from tests.read_back import workload as small

CASES = [
    ("googlenet-k80", "k80-10gbe-ring", 16),
    ("vgg13-h100", "h100-node", 8),
    pytest.param(("resnet50-v100", "v100-10gbe", 16), marks=pytest.mark.long),
]


def build(subject):
    """(workload, pricing, optimal plan) of a case."""
    workload, cluster, workers = subject
    loaded = osf.load_workload(workload)
    cost = cost_of(osf.load_cluster(cluster), workers)
    return loaded, Pricing.of(cost, workers=workers), SOLVERS["optimal"].solve(asked(loaded, cost)).require_plan()


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)), scope="module")
def case(request):
    return build(request.param)


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_every_plan_of_a_target_sends_everything_once(name, case):
    workload, pricing, plan = case
    target = CONFIG_TARGETS[name]
    for knobs in (target.convert.default_knobs(), target.convert.from_plan(plan, workload, pricing, Limits())):
        target.convert.to_plan(knobs, workload, pricing).require_valid(workload)


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_knobs_for_the_best_plan_are_no_worse_than_the_defaults(name, case):
    workload, pricing, plan = case
    target = CONFIG_TARGETS[name]
    default, tuned = (
        predict_timeline(workload, target.convert.to_plan(knobs, workload, pricing), pricing).iteration_time
        for knobs in (target.convert.default_knobs(), target.convert.from_plan(plan, workload, pricing, Limits()))
    )
    assert tuned <= default * (1 + 1e-12)


@pytest.mark.usefixtures("kept_tuning")
@pytest.mark.parametrize("framework", CONFIG_TARGETS)
def test_a_file_that_ends_as_the_frameworks_own_holds_its_settings(framework, tmp_path):
    """Whatever else is called so; and osfmodel's own result, which is a plan, where it is asked for or no such file."""
    asked = ["tune", "alexnet-pipedream", "--cluster", "v100-10gbe", "--workers", "16", "--for", framework]
    target, whole = CONFIG_TARGETS[framework], json.loads(invoke([*asked, "--json"]).stdout)
    for ending in target.text.endings:
        path = tmp_path / f"settings{ending}"
        result = invoke([*asked, "-o", str(path)])
        assert f"settings for {framework}; the plan and its times: --format json" in result.stderr
        assert path.read_text() == (whole["rendered"] if ending == target.text.ending else path.read_text())
        assert {".py": _compiles, ".env": _sets, ".json": json.loads}.get(ending, str.strip)(path.read_text())
        assert invoke([*asked, "-f", "json", "-o", str(path)]).exit_code == 0
        assert json.loads(path.read_text()) == whole
    for ending in {".json", ".yaml"} - set(target.text.endings):
        path = tmp_path / f"result{ending}"
        assert "the plan and its times" in invoke([*asked, "-o", str(path)]).stderr
        assert yaml.safe_load(path.read_text()) == whole
    for ending in {".py", ".env", ".sh", ".args", ".hjson"} - set(target.text.endings):
        path = tmp_path / f"wrong{ending}"
        result = invoke([*asked, "-o", str(path)])
        known = " or ".join(target.text.endings) or ".json"
        assert (result.exit_code, f"make no {ending}: name it {known}" in result.stderr) == (2, True)
        assert not path.exists()


@pytest.mark.parametrize("ending", [".py", ".sh"])
def test_what_has_no_lines_to_paste_is_not_written_as_such(ending, tmp_path):
    path = tmp_path / f"result{ending}"
    asked = ["predict", "googlenet-k80", "--cluster", "v100-10gbe", "--workers", "16", "-o", str(path)]
    result = invoke(asked)
    assert (result.exit_code, path.exists()) == (2, False)
    assert f"-o {path}: only osf tune and osf scale --for have lines to paste: name it .json" in result.stderr


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_files_that_a_launch_names_are_those_that_are_written(name):
    """``-o lines.py`` in a sentence has an ending that osf tune takes for this framework."""
    target = CONFIG_TARGETS[name]
    told = re.findall(r"-o [\w-]+(\.\w+)", f"{target.script} {target.launch.launcher}")
    assert [ending for ending in told if ending not in (target.text.endings or (".json",))] == []
    assert told or target.launch.script


def _compiles(text):
    return compile(text, "settings.py", "exec")


def _sets(text):
    """Variables, as ``set -a; . FILE`` reads them."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return all(re.fullmatch(r"[A-Z_]+=[0-9.]+", line) for line in lines) and lines


@pytest.mark.usefixtures("kept_tuning")
def test_files_of_other_names_are_what_their_readers_want(tmp_path):
    """DeepSpeed's without comments; horovodrun's with the figures of the environment, in its units."""
    asked = ["tune", "alexnet-pipedream", "--cluster", "v100-10gbe", "--workers", "16", "--for"]
    written = {}
    for name, file in (("deepspeed", "d.json"), ("horovod", "h.yaml")):
        invoke([*asked, name, "-o", str(tmp_path / file)])
        written[name] = yaml.safe_load((tmp_path / file).read_text())
        configs = json.loads(invoke([*asked, name, "--json"]).stdout)["config"]
        written[name] = (written[name], configs)
    assert written["deepspeed"][0] == written["deepspeed"][1]
    said, config = written["horovod"]
    assert int(said["params"]["fusion_threshold_mb"]) == -(-int(config["env"]["HOROVOD_FUSION_THRESHOLD"]) // 2**20)
    assert float(said["params"]["cycle_time_ms"]) == float(config["env"]["HOROVOD_CYCLE_TIME"])


def some_plans(workload, pricing, plan):
    """The plan given, simple ones, every framework's default; each also in reverse, and released half a second late."""
    plans = [
        plan,
        one_by_one(workload),
        in_one(workload),
        SOLVERS["mg-wfbp"].solve(asked(workload, pricing.cost())).plan,
    ]
    plans += [
        target.convert.to_plan(target.convert.default_knobs(), workload, pricing) for target in CONFIG_TARGETS.values()
    ]
    turned = [replace(made, buckets=made.buckets[::-1]) for made in plans]
    late = [
        replace(made, buckets=tuple(replace(bucket, release_time=bucket.release_time + 0.5) for bucket in made.buckets))
        for made in plans
    ]
    return [*plans, *turned, *late]


def members(plan):
    """The blocks of each bucket, in order: all that a framework with a clock of its own can be told."""
    return [bucket.blocks for bucket in plan.buckets]


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_what_a_framework_does_it_can_be_set_to_do(name, case):
    """forms(to_plan(knobs)): for the defaults, and for knobs made for other plans."""
    workload, pricing, plan = case
    target = CONFIG_TARGETS[name]
    plain = (plan, one_by_one(workload), in_one(workload))
    knobs = [
        target.convert.default_knobs(),
        *(target.convert.from_plan(other, workload, pricing, Limits()) for other in plain),
    ]
    for chosen in (*knobs, target.convert.complete(knobs[1], workload, [pricing], Limits())):
        assert target.convert.forms(target.convert.to_plan(chosen, workload, pricing), workload)


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_a_plan_that_a_framework_forms_comes_back_exactly(name, case):
    """forms(plan) says that to_plan(from_plan(plan)) is that plan: the same buckets and order, and release times."""
    workload, pricing, plan = case
    target = CONFIG_TARGETS[name]
    formed = [other for other in some_plans(workload, pricing, plan) if target.convert.forms(other, workload)]
    assert formed
    for other in formed:
        again = target.convert.to_plan(target.convert.from_plan(other, workload, pricing, Limits()), workload, pricing)
        assert members(again) == members(other) if target.clock else again == other


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_config_is_json_and_text_is_complete(name, case):
    workload, pricing, plan = case
    target = CONFIG_TARGETS[name]
    knobs = target.convert.complete(
        target.convert.from_plan(plan, workload, pricing, Limits()), workload, [pricing], Limits()
    )
    assert json.loads(json.dumps(target.text.config(knobs))) == target.text.config(knobs)
    text = target.text.render(knobs, workload)
    assert workload.name in text
    assert text.endswith("\n")
    assert not re.search(r"\{\w+\}", text), "a placeholder was left in the template"
    assert target.summary


GIVEN = {"--max-bucket": Limits(1 << 30), "--max-buckets": Limits(max_buckets=100),
         "--memory": Limits(memory=MemoryLimit(1 << 40, "sgd"))}  # fmt: skip


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_limits_are_kept_or_refused_by_name(name):
    workload, cluster = small(Random(1)), osf.load_cluster("k80-10gbe-ring")
    for option, limits in GIVEN.items():
        if option in CONFIG_TARGETS[name].limits:
            assert limits.allow(osf.tune(workload, cluster, 4, name, limits).plan)
        else:
            says = f"--memory works with .*, not with {name}" if option == "--memory" else f"{option} .* --for {name}: "
            with pytest.raises(UsageError, match=says):
                osf.tune(workload, cluster, 4, name, limits)


STOCK = [name for name, target in CONFIG_TARGETS.items() if not target.executes]


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("setting", [{"channels": 2}, {"forward_overlap": True}, {"strategy": "split"}])
def test_a_plan_beyond_the_framework_is_refused(name, setting, case):
    workload, pricing, plan = case
    target, beyond = CONFIG_TARGETS[name], Plan(workload.name, plan.buckets, **setting)
    if not target.objective.permits(beyond.objective):
        with pytest.raises(PlanError, match="executor"):
            target.convert.from_plan(beyond, workload, pricing, Limits())
    assert not target.convert.forms(beyond, workload)


@pytest.mark.parametrize("name", STOCK)
def test_a_cut_tensor_is_refused(name, case):
    workload, pricing, _ = case
    first, *rest = zip(workload.gradients.names, workload.gradients.sizes, strict=True)
    half = first[1] // 2
    pieces = [[Block(first[0], 0, half)], [Block(first[0], half, first[1] - half)], [Block(n, 0, s) for n, s in rest]]
    plan = Plan(workload.name, tuple(Bucket(tuple(blocks)) for blocks in pieces))
    with pytest.raises(PlanError, match="whole tensors"):
        CONFIG_TARGETS[name].convert.from_plan(plan, workload, pricing, Limits())


@pytest.mark.parametrize("name", CONFIG_TARGETS)
def test_the_plan_of_another_workload_is_refused(name, case):
    workload, pricing, plan = case
    convert, other = CONFIG_TARGETS[name].convert, replace(plan, workload="another")
    with pytest.raises(PlanError, match=f"the plan is for workload 'another', not for {workload.name!r}"):
        convert.from_plan(other, workload, pricing, Limits())
    assert not convert.forms(other, workload)


@pytest.mark.parametrize("name", [name for name in CONFIG_TARGETS if name not in STOCK])
def test_an_executor_carries_out_any_plan_as_it_is(name, case):
    workload, pricing, plan = case
    target = CONFIG_TARGETS[name]
    wild = Plan(workload.name, tuple(reversed(plan.buckets)), channels=3, forward_overlap=True, strategy="split")
    knobs = target.convert.from_plan(wild, workload, pricing, Limits())
    assert target.convert.to_plan(knobs, workload, pricing) == wild
    assert target.convert.forms(wild, workload)


PLANS = [*NAMED_PLANS, *(name for family in FAMILIES.values() for name in family.examples), "sparse:1%,ddp,fallback"]
UNPRICED_TARGETS = {name for name, target in stock_targets().items() if target.convert.unpriced}
NEED_NONE = {"wfbp", "single", "decoupled", "cap:25MiB", "horovod:64MiB,5ms", "sparse:1%,cap:25MiB"} | UNPRICED_TARGETS
NEED_NONE |= {name for name in PLANS if name.startswith(("fsdp2:", "zero-"))}


def test_osf_run_asks_for_prices_where_a_plan_needs_them(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    needing = {}
    for name in PLANS:
        result = invoke(["run", "googlenet-k80", "--plan", name, "-o", str(tmp_path / "r.json")])
        needing[name] = "needs prices" in result.output
        assert needing[name] or "RANK, WORLD_SIZE" in result.output
    assert {name for name in PLANS if not needing[name]} == NEED_NONE


@pytest.mark.parametrize("plan", [name for name in PLANS if name in NEED_NONE and not name.startswith("horovod")])
def test_a_plan_that_needs_no_prices_is_the_same_at_any(plan, case):
    workload, pricing, _ = case
    assert named_plan(plan).unpriced
    assert make_plan(plan, workload, pricing) == make_plan(plan, workload, Pricing.of(FREE, workers=2))
