"""Sparse plans by name, and what the reference page says of sparse communication."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields, replace

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.engine.sparse import part_bytes, sparsely
from osfmodel.entities.effects import COUNTED, REPLAYED_ON_CPU, Effects
from osfmodel.entities.errors import OsfError
from osfmodel.entities.executors import RUNTIME, effects_under
from osfmodel.entities.plan import one_by_one
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.runtime.bench.computation import SIZES, SparseTiming, fitted
from osfmodel.targets.named_plans import make_plan, sparse_name
from tests.commands import invoke
from tests.conftest import ROOT

WORKLOAD, CLUSTER = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
PRICING = pricing_of(CLUSTER, 16)


def test_names_say_density_plan_and_options():
    plan = make_plan("sparse:1%,cap:25MiB,release,mirror", WORKLOAD, PRICING)
    dense = make_plan("cap:25MiB", WORKLOAD, PRICING)
    assert [bucket.blocks for bucket in plan.buckets] == [bucket.blocks for bucket in dense.buckets]
    assert {bucket.density for bucket in plan.buckets} == {0.01}
    assert plan.release
    assert plan.mirror
    assert sparse_name("sparse:0.5,osf:64MiB,5ms,fallback") == (0.5, "osf:64MiB,5ms", ("fallback",))
    assert sparse_name("cap:1MiB") is None
    found = osf.predict(WORKLOAD, osf.load_cluster("v100-10gbe"), "sparse:1%,wfbp", 8)
    assert sum("sparse sending changes what training computes" in note for note in found.notes) == 1


def test_fallback_sends_whole_what_does_not_pay():
    plan = make_plan("sparse:10%,wfbp,fallback", WORKLOAD, PRICING)  # above 1 / 16
    assert not any(bucket.density for bucket in plan.buckets if bucket.size > 1 << 20)
    assert make_plan("sparse:0.1%,wfbp,fallback", WORKLOAD, PRICING).sparse


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sparse:0,wfbp", "nothing would be sent"),
        ("sparse:0%,wfbp", "nothing would be sent"),
        ("sparse:101%,wfbp", "no tensor has more elements"),
        ("sparse:-1%,wfbp", "must be above 0"),
        ("sparse:nan,wfbp", "must be above 0"),
        ("sparse:inf,wfbp", "at most 1"),
        ("sparse:much,wfbp", "is not a density"),
        ("sparse:,wfbp", "is not a density"),
        ("sparse:1%", "write sparse:DENSITY,PLAN"),
        ("sparse:1%,release", "write sparse:DENSITY,PLAN"),
        ("sparse:1%,wfbp,mirror,mirror", "write sparse:DENSITY,PLAN"),
        ("sparse:1%,sparse:1%,wfbp", "sparse already"),
        ("sparse:1%,nonsense", "unknown plan 'nonsense'"),
        ("sparse:1%,us-byte", "neither split, put off nor sent by priority"),
    ],
)
def test_nonsense_is_refused_in_one_line(name, message):
    with pytest.raises(OsfError, match=message) as caught:
        make_plan(name, WORKLOAD, PRICING)
    assert "\n" not in str(caught.value)


def test_predict_shows_them_with_a_bound_of_their_own():
    """Less than any dense plan's bound is possible, and no gap is negative."""
    words = "predict resnet50-v100 --cluster v100-10gbe --workers 16 --json --plan sparse:0.1%,wfbp --plan optimal"
    result = invoke(words.split())
    rows = {row["plan"]: row for row in json.loads(result.stdout)["predictions"]}
    assert rows["sparse:0.1%,wfbp"]["gap"] >= 0
    assert any("compare losses" in note for note in rows["sparse:0.1%,wfbp"]["notes"])
    assert any("not known here" in note for note in rows["sparse:0.1%,wfbp"]["notes"])


PLAIN_PLAN = make_plan("ddp", WORKLOAD, PRICING)
SEGMENT = osf.Segment("block", WORKLOAD.layers[0].name, WORKLOAD.layers[3].name, 1000)
SEGMENTED = replace(WORKLOAD, segments=(SEGMENT,))
BEYOND = {
    "channels": ("2 channels", replace(PLAIN_PLAN, channels=2)),
    "forward_overlap": ("the next forward to overlap", replace(PLAIN_PLAN, forward_overlap=True)),
    "strategy": ("reduce-scatter and all-gather", replace(PLAIN_PLAN, strategy="split")),
    "credit": ("by priority", replace(PLAIN_PLAN, credit=1 << 20)),
    "density": ("sparse buckets", sparsely(PLAIN_PLAN, 0.01)),
    "mirror": ("mirror weights", replace(sparsely(PLAIN_PLAN, 0.01), mirror=True)),
    "release": ("released in backward", replace(PLAIN_PLAN, release=True)),
    "recompute": ("segments recomputed", replace(PLAIN_PLAN, recompute=("block",))),
    "sharding": (
        "sharded parameters",
        replace(PLAIN_PLAN, sharding=Sharding((ParameterGroup(),) * len(PLAIN_PLAN.buckets))),
    ),
}


def test_every_field_that_changes_execution_is_in_wants():
    """Otherwise a framework could silently ignore a part of a plan."""
    told = {field.name for field in fields(osf.Plan) if field.init and field.compare}  # others change no execution
    names = told - {"workload", "buckets"} | {"density"}
    assert names == set(BEYOND)
    for name, (_, plan) in BEYOND.items():
        assert name in plan.wants
        assert not plan.plain
    assert not PLAIN_PLAN.wants


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("dtypes", [1, 2])
def test_ddp_refuses_them_by_name(name, dtypes):
    from osfmodel.runtime.training.ddp_buckets import carried

    words, plan = BEYOND[name]
    workload = SEGMENTED
    if dtypes == 2:
        first, *rest = SEGMENTED.layers
        workload = replace(SEGMENTED, layers=(replace(first, dtype="float16"), *rest))
        apart = [replace(bucket, blocks=(block,)) for bucket in plan.buckets for block in bucket.blocks]
        sharding = None if plan.sharding is None else Sharding((ParameterGroup(),) * len(apart))
        plan = replace(plan, buckets=tuple(apart), sharding=sharding)
    with pytest.raises(OsfError, match=f"which wants .*{words}"):
        carried("given", plan, workload)


@pytest.mark.parametrize("name", BEYOND)
def test_a_plan_pays_the_same_in_every_command(name, tmp_path):
    """The executor's prices, also where the library keeps two in flight and DDP copies."""
    _, plan = BEYOND[name]
    memory = osf.load_workload("resnet50-memory")
    plan = make_plan("ddp", memory, PRICING)
    segments = (memory.segments[0].name,)
    changes = {
        "density": {},
        "channels": {"channels": 2},
        "credit": {"credit": 1 << 20},
        "recompute": {"recompute": segments},
        "strategy": {"strategy": "split"},
        "sharding": {
            "strategy": "fully-sharded",
            "sharding": Sharding((ParameterGroup(),) * len(plan.buckets)),
        },
    }
    sparse = sparsely(plan, 0.01)
    plan = replace(sparse if name in ("density", "mirror") else plan, **changes.get(name, {name: True}))
    cluster = replace(CLUSTER, in_flight=2, effects=Effects(copy_in=1e-10, copy_out=1e-10))
    osf.save(plan, tmp_path / "plan.json")
    osf.save(cluster, tmp_path / "cluster.json")
    words = ["resnet50-memory", "--cluster", str(tmp_path / "cluster.json"), "--workers", "16", "--json"]
    told = [
        json.loads(invoke([command, *words, "--plan", str(tmp_path / "plan.json")]).stdout)
        for command in ("predict", "memory")
    ]
    end = max(level["end_s"] for level in told[1]["plans"][0]["levels"])
    assert end == pytest.approx(told[0]["predictions"][0]["iteration_time_s"])


def test_what_runs_pay():
    """Selection is real work also in a replay; there the copies of a sparse plan's dense buckets count as well."""
    effects = Effects(copy_in=1e-10, select=1e-9, spread=1e-11, mirror=1e-10)
    replay = REPLAYED_ON_CPU | RUNTIME.conditions
    assert effects_under(effects, replay) == Effects(select=1e-9, spread=1e-11, mirror=1e-10)
    assert effects_under(effects, replay | COUNTED).copy_in == 1e-10
    assert effects_under(effects, REPLAYED_ON_CPU | COUNTED | {"executor": "horovod"}).copy_in == 0


def test_the_costs_of_choosing_are_found_again():
    """From samples that they made; noise leaves none negative."""
    samples = []
    for elements in SIZES:
        for density in (0.01, 0.1):
            size, sent = 4 * elements, part_bytes(4 * elements, density)
            chosen = 3e-5 + 1e-9 * size + 8e-9 * sent
            samples.append(SparseTiming(size, sent, 4 * sent, chosen, 2e-5 + 2e-11 * size + 5e-10 * 4 * sent))
    found = fitted(samples)
    assert found == pytest.approx(
        {
            "select_time": 3e-5,
            "select": 1e-9,
            "select_sent": 8e-9,
            "spread_time": 2e-5,
            "spread": 2e-11,
            "spread_received": 5e-10,
        }
    )
    falling = [sample._replace(select=1 / sample.size) for sample in samples]
    assert all(value >= 0 for value in fitted(falling).values())


def test_a_plan_file_gives_each_bucket_its_density(tmp_path):
    plan = one_by_one(WORKLOAD)
    path = tmp_path / "plan.json"
    osf.save(make_plan("sparse:5%,wfbp,release", WORKLOAD, PRICING), path)
    read = osf.load_plan(path)
    assert {bucket.density for bucket in read.buckets} == {0.05}
    assert read.release
    assert len(read.buckets) == len(plan.buckets)


def test_the_table_of_the_page_is_the_printed_one(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    importlib.import_module("sparse_cost").main([])
    printed = capsys.readouterr().out
    page = (ROOT / "docs/reference/sparse.md").read_text(encoding="utf-8")
    assert printed.splitlines()[0] in page
    assert printed in page
