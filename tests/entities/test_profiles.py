"""Profile files: round trips, provenance, bad input."""

from __future__ import annotations

import dataclasses
import filecmp
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import osfmodel as osf
from osfmodel import (
    AlphaBeta,
    Cluster,
    DataError,
    Layer,
    Link,
    NcclShape,
    Pieces,
    Protocol,
    Segment,
    Source,
    Table,
    UsageError,
    Workload,
)
from osfmodel.cost import worker_counts
from osfmodel.engine.strategies import strategy_of
from osfmodel.entities.cluster import Contention
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.documents import document_of
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.savings import Offload
from osfmodel.entities.sharding import ParameterGroup, Sharding
from tests.conftest import ROOT

WORKLOADS = list(profiles.names("workload"))
CLUSTERS = list(profiles.names("cluster"))


def test_enough_of_them():
    assert len(WORKLOADS) >= 14
    assert len(CLUSTERS) >= 12


@pytest.mark.parametrize(
    ("load", "name"),
    [(osf.load_workload, name) for name in WORKLOADS] + [(osf.load_cluster, name) for name in CLUSTERS],
)
def test_every_profile_says_where_it_is_from(load, name):
    profile = load(name)
    assert profile.name == name
    for text in (profile.source.origin, profile.source.conditions, profile.source.licence):
        assert text not in ("", "not stated")


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_prices_its_worker_counts(name):
    cluster = osf.load_cluster(name)
    for workers in worker_counts(cluster) or (2, 3, min(64, cluster.capacity or 64)):
        assert osf.cost_of(cluster, workers)(2**20) > 0


@pytest.mark.long
def test_profiles_are_what_the_converter_makes(data_folder, tmp_path):
    """Byte for byte, so every figure can be traced to the published file."""
    environment = {**os.environ, "OSFMODEL_DATA": str(data_folder)}
    subprocess.run(
        [sys.executable, ROOT / "profiles/make.py", tmp_path], check=True, env=environment, capture_output=True
    )
    for folder in ("workloads", "clusters", "measurements"):
        made = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert made == sorted(path.name for path in (ROOT / "profiles" / folder).iterdir() if not is_ours(path))
        _, different, unreadable = filecmp.cmpfiles(tmp_path / folder, ROOT / "profiles" / folder, made, shallow=False)
        assert different == unreadable == []


def is_ours(path):
    """Whether it was measured with this project, or made of what was, so that the file is what was found."""
    return json.loads(path.read_text(encoding="utf-8"))["source"]["origin"].startswith(
        ("measured by osf", "measured with", "times of ")
    )


def test_googlenet_k80_is_as_described():
    workload = osf.load_workload("googlenet-k80")
    assert len(workload.layers) == 64
    assert workload.update_time == 0
    assert all(layer.forward_time == layer.backward_time / 2 for layer in workload.layers)
    assert workload.layers[0].gradient_bytes == 4 * 9472
    assert workload.layers[0].backward_time == pytest.approx(15143.7e-6)


def test_resnet50_v100_is_as_described():
    workload = osf.load_workload("resnet50-v100")
    assert len(workload.gradients) == 161
    assert workload.compute_time == pytest.approx(95.6e-3)
    assert workload.update_time == 0
    assert workload.gradients.names[:2] == ("fc.bias", "fc.weight")
    assert workload.gradient_bytes == 4 * 25_557_032


def test_h100_profiles_count_every_parameter():
    assert osf.load_workload("resnet50-h100").gradient_bytes == 4 * 25_557_032
    assert osf.load_workload("vgg13-h100").gradient_bytes == 4 * 133_047_848


@pytest.mark.parametrize("name", [*WORKLOADS[:3], *CLUSTERS])
def test_saved_nouns_load_unchanged(name, tmp_path):
    load = osf.load_workload if name in WORKLOADS else osf.load_cluster
    osf.save(load(name), tmp_path / "copy.json")
    assert load(tmp_path / "copy.json") == load(name)


def test_plan_files_round_trip_and_tolerate_further_fields(tmp_path):
    plan = Plan(
        "w", (Bucket((Block("a", 0, 4),)), Bucket((Block("b", 0, 8), Block("c", 0, 4)), 0.25)), 2, True, "split"
    )
    osf.save(plan, tmp_path / "plan.json")
    assert osf.load_plan(tmp_path / "plan.json") == plan
    document = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "more.json").write_text(json.dumps({**document, "comment": "mine", "gap": 0.1}))
    assert osf.load_plan(tmp_path / "more.json") == plan
    (tmp_path / "tuned.json").write_text(json.dumps({"schema_version": 1, "plan": document, "workers": 4}))
    assert osf.load_plan(tmp_path / "tuned.json") == plan


def test_mirror_weights_of_a_plan_are_no_effect_in_its_file(tmp_path):
    """Earlier versions wrote them under the key of the effect, which is still read."""
    plan = Plan("w", (Bucket((Block("a", 0, 8),), density=0.5),), mirror=True)
    document = document_of(plan)
    assert document["mirror"] is True
    older = {("mirror_s_per_byte" if key == "mirror" else key): value for key, value in document.items()}
    for content in (document, older, {"schema_version": 1, "plan": older}):
        (tmp_path / "plan.json").write_text(json.dumps(content))
        assert osf.load_plan(tmp_path / "plan.json") == plan


def test_plan_files_name_their_strategy(tmp_path):
    """By ``split``, as ever, where that says it; by its name else."""
    path = tmp_path / "plan.json"
    plan = Plan("w", (Bucket((Block("a", 0, 4),)),), strategy="split")
    document = document_of(plan)
    assert document["split"] is True
    assert "strategy" not in document
    named = {key: value for key, value in document.items() if key != "split"} | {"strategy": "split"}
    path.write_text(json.dumps(named))
    assert osf.load_plan(path) == plan
    path.write_text(json.dumps(named | {"split": False}))
    with pytest.raises(DataError, match="says split False and strategy 'split': leave one of them out"):
        osf.load_plan(path)
    other = dataclasses.replace(plan, strategy="pipelined")
    osf.save(other, path)
    assert osf.load_plan(path) == other
    with pytest.raises(osf.UsageError, match="strategy 'pipelined'"):
        strategy_of(other)
    with pytest.raises(osf.PlanError, match="strategy is True"):
        dataclasses.replace(plan, strategy=True)


def test_absent_optional_fields_of_a_plan_take_their_defaults(tmp_path):
    bare = {"schema_version": 1, "workload": "w", "buckets": [{"blocks": [{"layer": "a", "offset": 0, "bytes": 4}]}]}
    (tmp_path / "plan.json").write_text(json.dumps(bare))
    assert osf.load_plan(tmp_path / "plan.json") == Plan("w", (Bucket((Block("a", 0, 4),)),))


LAYER = {"name": "a", "forward_time_s": 1, "backward_time_s": 1, "gradient_bytes": 4}
GOOD = {"schema_version": 1, "name": "w", "layers": [LAYER]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ('{"schema_version": 1,\n  "name": oops}', "line 2, column 11"),
        ("[1]", "a JSON list"),
        (b"\xff\xfe\x00", "not valid JSON"),
        ({**GOOD, "schema_version": 2}, "schema_version 2: this osfmodel reads version 1"),
        ({"name": "w", "layers": [LAYER]}, "is not an osfmodel file"),
        ({**GOOD, "layers": []}, "no layers"),
        ({**GOOD, "layers": [LAYER, LAYER]}, "two layers named 'a'"),
        ({**GOOD, "layers": [{**LAYER, "forward_time_s": -1}]}, "forward time of layer 'a'"),
        ({**GOOD, "layers": [{**LAYER, "forward_time_s": "1ms"}]}, r"layers\[0\].forward_time_s"),
        ({**GOOD, "layers": [{**LAYER, "gradient_bytes": 1.5}]}, r"layers\[0\].gradient_bytes"),
        ({**GOOD, "layers": [{"name": "a"}]}, "missing required field"),
        ({**GOOD, "update_time": 3}, "unknown field 'update_time': did you mean 'update_time_s'"),
        (json.dumps(GOOD).replace('"forward_time_s": 1', '"forward_time_s": NaN'), "not valid JSON"),
        (
            json.dumps(GOOD).replace('"forward_time_s": 1', '"forward_time_s": 1e999'),
            "out of range|not valid JSON|finite",
        ),
        ({**GOOD, "kind": "cluster"}, "is a cluster, but a workload is needed"),
        ({"schema_version": 1, "name": "c", "cost_model": "ring"}, "is a cluster, but a workload is needed"),
    ],
)
def test_bad_workload_files_name_file_place_and_fault(tmp_path, content, message):
    path = tmp_path / "bad.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        osf.load_workload(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_names(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        osf.load_workload(tmp_path / "none.json")
    with pytest.raises(DataError, match=r"is a folder: `osf import .* --kind workload"):
        osf.load_workload(tmp_path)
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="--kind workload"):
        osf.load_workload(tmp_path)
    osf.save(osf.load_workload("resnet50-v100"), tmp_path / "w.json")
    osf.save(osf.load_cluster("v100-10gbe"), tmp_path / "c.json")
    with pytest.raises(DataError, match=r"is a folder: give .*/w\.json$"):
        osf.load_workload(tmp_path)
    with pytest.raises(DataError, match=r"is a folder: give .*/c\.json$"):
        osf.load_cluster(tmp_path)
    with pytest.raises(UsageError, match="did you mean resnet50-v100"):
        osf.load_workload("resnet50-v10")
    with pytest.raises(UsageError, match="osf list clusters"):
        osf.load_cluster("zzzzzz")


def test_own_profiles_come_before_bundled_ones(tmp_path, monkeypatch, small_workload):
    (tmp_path / "workloads").mkdir()
    osf.save(small_workload, tmp_path / "workloads" / "mine.json")
    monkeypatch.setenv("OSFMODEL_PROFILES", str(tmp_path))
    assert osf.load_workload("mine") == small_workload
    assert "mine" in profiles.names("workload")


@pytest.mark.parametrize("model", [name for name, entry in osf.COST_MODELS.items() if entry.from_spec is None])
def test_a_model_that_has_no_words_is_said_to_have_none(model):
    with pytest.raises(UsageError, match=rf"'{model}' cannot be said in words.*: those that can are ring, .*, nccl$"):
        osf.load_cluster(f"{model}:10us,10Gbps")


def test_a_cluster_in_words():
    cluster = osf.load_cluster("ring:50us,10Gbps")
    assert osf.cost_of(cluster, 2)(10**6) == pytest.approx(2 * 50e-6 + 10**6 / 1.25e9)
    for words, message in [
        ("ring:50us", "LATENCY,BANDWIDTH"),
        ("ring:50,10Gbps", "no unit"),
        ("ring:50us,10", "no unit"),
        ("ring:50us,0Gbps", "moves nothing"),
    ]:
        with pytest.raises(UsageError, match=message):
            osf.load_cluster(words)


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(osf.OsfError, match="cannot be written as JSON"):
        documents.encode({"kind": object()})


def test_a_failed_write_leaves_what_was_there(tmp_path, small_workload):
    target = tmp_path / "kept.json"
    target.write_text("before")
    with pytest.raises(DataError, match="cannot be written"):
        profiles.write_text(tmp_path / "no" / "such" / "folder.json", "text")
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        profiles.write_text(target, "half \udc80")
    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]


EQUAL = ("executor", "searched")
"""Fields of plans in which equal ones may differ."""


def test_every_field_of_every_noun_survives_a_file(tmp_path):
    """All fields set to something other than their default: one that a document forgets makes the nouns differ."""
    source = Source("someone", "somehow", "some licence")
    cluster = Cluster(
        name="full",
        cost_model="tabulated",
        gpus_per_node=3,
        nodes=2,
        nics_per_node=2,
        between_nodes=Link(1.0, 2.0, 3.0),
        in_node=Link(0.1, 0.2, 0.3),
        fits=(AlphaBeta(2, 0.5, 0.25, "all_gather"),),
        tables=(Table(4, (1, 2), (0.5, 0.75), "reduce_scatter", (0.5, 0.25)),),
        effects=osf.Effects(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
        nccl=NcclShape("hopper", "nvswitch", 3e11, 4e10, True, 1.5, 2.5),
        pieces=(Pieces(4, (0.5, 0.75), (2.0, 1.0), "all_gather"),),
        fitted=osf.FittedRange(1, 2, (4, 8)),
        contention=(Contention(4, 1.5),),
        usual_effects=False,
        doubt=0.25,
        in_flight=2,
        library="nccl",
        protocols=(Protocol(0.5, 0.25, Link(1.0, 2.0), Link(3.0, 4.0, 5.0)), Protocol(1.0, 0.0)),
        source=source,
    )
    layer = Layer("a", 1.0, 2.0, 3, "bfloat16", activation_bytes=4, enqueue_time=5.0, peak_bytes=6)
    segments = (Segment("block", "a", "a", 8),)
    workload = Workload(
        "full",
        (layer,),
        6,
        7.0,
        source,
        segments,
        state_bytes=9,
        update_bytes=10,
        fixed_bytes=11,
        sent_as="fp16",
        grain="bucket",
        computing=0.5,
        profiled_workers=4,
        doubt=0.1,
        computed_in="bfloat16",
        sample_tokens=12,
        ideal_time=0.5,
        fixed_share=0.25,
        weight_bytes=48,
        expert_share=0.25,
        expert_parallel=4,
        fullest=1.5,
        offload=Offload(("optimizer",), 0.25, 0.5, 13, 14),
    )
    block = Block("a", 0, 3)
    plans = (
        Plan(
            "full",
            (Bucket((block,), 1.5),),
            channels=2,
            forward_overlap=True,
            strategy="split",
            credit=7,
            executor="runtime",
            searched=osf.Search(osf.Objective(channels=3), 4, 5),
        ),
        Plan("full", (Bucket((block,), density=0.5),), recompute=("block",), release=True, mirror=True),
        Plan("full", (Bucket((block,)),), strategy="fully-sharded", sharding=Sharding((ParameterGroup(reshard=2),), 2)),
    )
    everything = [
        (cluster, osf.load_cluster),
        (workload, osf.load_workload),
        *((plan, osf.load_plan) for plan in plans),
    ]
    for noun, load in everything:
        osf.save(noun, tmp_path / "noun.json")
        read = load(tmp_path / "noun.json")
        assert read == noun
        assert [getattr(read, name, None) for name in EQUAL] == [getattr(noun, name, None) for name in EQUAL]
    for nouns in ((cluster,), (workload,), plans):
        for field in dataclasses.fields(nouns[0]):
            written = field.init and "Callable" not in str(field.type)
            if written and field.default is not dataclasses.MISSING:
                differs = any(getattr(noun, field.name) != field.default for noun in nouns)
                assert differs, f"give {field.name} a value of its own here"


def test_deep_nesting_endless_files_and_wrong_kinds(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"nested too deeply|not valid JSON"):
        osf.load_workload(tmp_path / "deep.json")
    with pytest.raises(DataError, match="larger than 64 MiB"):
        osf.load_workload("/dev/zero")
    plan = {"schema_version": 1, "workload": "w", "buckets": []}
    for document in (plan, {"schema_version": 1, "workload": "w", "plan": plan}):
        (tmp_path / "plan.json").write_text(json.dumps(document))
        with pytest.raises(DataError, match="is a plan, but a workload is needed"):
            osf.load_workload(tmp_path / "plan.json")
    (tmp_path / "new.json").write_text(json.dumps({"schema_version": 7, "plan": plan}))
    with pytest.raises(DataError, match="schema_version 7"):
        osf.load_plan(tmp_path / "new.json")


def test_a_hierarchical_cluster_in_words():
    shared = osf.load_cluster("hierarchical:8,5us,200GB/s,50us,25Gbps/node")
    own = osf.load_cluster("hierarchical:8,5us,200GB/s,50us,25Gbps")
    assert (shared.gpus_per_node, shared.nics_per_node, own.nics_per_node) == (8, 1, 8)
    assert osf.cost_of(shared, 32)(10**8) > 5 * osf.cost_of(own, 32)(10**8)
    with pytest.raises(UsageError, match="GPUS_PER_NODE"):
        osf.load_cluster("hierarchical:8,5us,200GB/s")


@pytest.mark.parametrize(
    ("end", "nics", "gbps"),
    [
        ("25Gbps", 8, 25),
        ("25Gbps/gpu", 8, 25),
        ("200Gbps/node", 1, 200),
        ("25Gbps,2", 2, 25),
        ("25Gbps/nic,2", 2, 25),
        ("25Gbps/gpu,2", 2, 100),
        ("200Gbps/node,2", 2, 100),
        ("3.125GB/s/GPU", 8, 25),
    ],
)
def test_rates_between_nodes_are_of_what_they_say(end, nics, gbps):
    """Without a unit of each GPU, or of each NIC if their number is given."""
    cluster = osf.load_cluster(f"hierarchical:8,5us,200GB/s,50us,{end}")
    assert cluster.nics_per_node == nics
    assert cluster.between_nodes.seconds_per_byte == pytest.approx(8e-9 / gbps)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("hierarchical:8,5us,200GB/s,50us,25Gbps/nic", "the number of NICs is not given .*: write /gpu or /node"),
        ("hierarchical:8,5us,200GB/s/node,50us,25Gbps", "only the link of each GPU counts: write /gpu"),
        ("ring:50us,10Gbps/node", "only the link of each GPU counts: write /gpu"),
        ("nccl:a100x8,200Gbps/nic", "how many NICs a node has: write /gpu or /node"),
        ("nccl:a100x8,200Gbps/rack", "unknown bandwidth unit 'Gbps/rack'"),
    ],
)
def test_rates_of_what_a_model_does_not_know_are_refused(words, message):
    with pytest.raises(UsageError, match=message):
        osf.load_cluster(words)


def test_the_same_rate_in_words_is_the_same_network():
    def priced(words, workers=32):
        return osf.cost_of(osf.load_cluster(words), workers)(10**8)

    assert priced("ring:50us,10Gbps") == priced("ring:50us,10Gbps/gpu")
    for node in ("nccl:h100x8,", "hierarchical:8,5us,200GB/s,50us,"):
        assert priced(f"{node}400Gbps") == priced(f"{node}400Gbps/gpu") == pytest.approx(priced(f"{node}3200Gbps/node"))


def test_nccl_clusters_in_words():
    cluster = osf.load_cluster("nccl:h100x8,400Gbps")
    assert cluster.nccl == NcclShape("hopper", "nvswitch", 370e9, 50e9, nvls=True)
    assert (cluster.gpus_per_node, cluster.nodes) == (8, None)
    assert osf.cost_of(cluster, 64)(10**8) > osf.cost_of(cluster, 8)(10**8)
    assert osf.load_cluster("nccl:A100x4").capacity == 4
    for words, message in [
        ("nccl:h100", "GPUxGPUS_PER_NODE"),
        ("nccl:h100x8,400Gbps,8", "GPUxGPUS_PER_NODE.*FABRIC"),
        ("nccl:tpux8", "unknown GPU 'tpu': known are k80"),
        ("nccl:h100x8,400", "no unit"),
        ("nccl:h100x8,0Gbps", "moves nothing"),
    ]:
        with pytest.raises(UsageError, match=message):
            osf.load_cluster(words)


def test_times_of_one_profile_and_memory_of_another():
    """The bundled file is what its script makes."""
    script = runpy.run_path(str(ROOT / "profiles" / "transplant.py"))
    for name in script["MADE"]:
        made, bundled = script["transplanted"](name), osf.load_workload(name)
        assert made == bundled
        assert made.compute_time == pytest.approx(osf.load_workload(script["MADE"][name][1]).compute_time)


def test_files_read_are_logged_for_programs_that_ask(caplog, capsys):
    caplog.set_level("DEBUG", logger="osfmodel")
    osf.load_cluster("v100-10gbe")
    assert [Path(message).name for message in caplog.messages] == ["v100-10gbe.json"]
    assert capsys.readouterr() == ("", "")
