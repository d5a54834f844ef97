"""FSDP2 and HSDP: groups of blocks, and the lines that make them."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from itertools import product

import pytest

from osfmodel import CONFIG_TARGETS, Layer, Workload, load_cluster, load_workload, predict, tune
from osfmodel.cost import AffineCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.compression import compressed
from osfmodel.entities.errors import DataError, PlanError, UsageError
from osfmodel.entities.plan import in_one, one_by_one
from osfmodel.solve.solution import Limits
from osfmodel.targets import fsdp2, fsdp2_knobs, fsdp2_lines
from osfmodel.targets.fsdp2 import FsdpKnobs
from osfmodel.targets.fsdp2_knobs import plan_name
from osfmodel.targets.named_plans import make_plan
from tests.commands import invoke

PRICING = Pricing.of(AffineCost(((2e-3, 1e-6),)), workers=4)


def made(count, root=0):
    """Blocks of a weight and a bias each, and a parameter of the root's own."""
    layers = [Layer(f"layers.{i}.{part}", 1e-3, 2e-3, 4 * size) for i in range(count) for part, size in
              (("weight", 100), ("bias", 1))]  # fmt: skip
    own = [Layer("scale", 1e-3, 1e-3, 4 * root)] if root else []
    return Workload("made", tuple(own + layers))


def names(plan):
    return [[block.layer for block in bucket.blocks] for bucket in plan.buckets]


def test_by_default_each_block_is_a_group_and_the_rest_is_the_roots():
    plan = fsdp2.to_plan(FsdpKnobs(), made(2, root=3), PRICING)
    assert names(plan) == [["layers.0.weight", "layers.0.bias"], ["layers.1.weight", "layers.1.bias"], ["scale"]]
    assert [group.reshard for group in plan.sharding.groups] == [True, True, False]
    assert plan.strategy == "fully-sharded"


def test_a_module_that_no_model_has_is_named():
    with pytest.raises(PlanError, match=r"no parameters in a module 'layers.7'"):
        fsdp2.to_plan(FsdpKnobs((("layers.7",),)), made(2), PRICING)


def test_plans_of_all_reduces_become_groups_that_are_no_slower_than_the_default():
    workload = made(6, root=3)
    default = predict_timeline(workload, fsdp2.to_plan(FsdpKnobs(), workload, PRICING), PRICING).iteration_time
    for start in (one_by_one, in_one):
        knobs = fsdp2.from_plan(start(workload), workload, PRICING)
        assert predict_timeline(workload, fsdp2.to_plan(knobs, workload, PRICING), PRICING).iteration_time <= default


def test_a_replica_is_a_node_and_fsdp2_has_none():
    workload, pricing = made(3), pricing_of(load_cluster("nccl:h100x8,400Gbps"), 32)
    hybrid = CONFIG_TARGETS["hsdp"].convert
    plan = hybrid.default(workload, pricing)
    assert plan.sharding.replicas == 4
    assert hybrid.exact(plan, workload) == FsdpKnobs(replicas=4)
    with pytest.raises(PlanError, match="ask hsdp"):
        fsdp2.exact(plan, workload)
    assert hybrid.default(workload, pricing_of(load_cluster("nccl:h100x8,400Gbps"), 8)).strategy == "fully-sharded"


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([["layers.0"], ["layers.1"], ["layers.2"]], '*(["layers.%d" % i] for i in range(0, 3))'),
        ([["layers.0", "layers.1"], ["layers.2", "layers.3"]],
         '*(["layers.%d" % j for j in range(i, i + 2)] for i in range(0, 4, 2))'),
        ([["h_3", "h_4", "h_5", "h_6"]], '["h_%d" % i for i in range(3, 7)]'),
        ([["a", "h.0", "h.1", "h.2", "b"]], '[\'a\', *("h.%d" % i for i in range(0, 3)), \'b\']'),
        ([["layers.0", "layers.1"]], "['layers.0', 'layers.1']"),
        ([["layers.0", "layers.2", "layers.3"]], "['layers.0', 'layers.2', 'layers.3']"),
        ([["a.08", "a.09", "a.10"]], "['a.08', 'a.09', 'a.10']"),
        ([["first"], ["second"], ["third"]], "['first'],"),
        ([["a%.1", "a%.2", "a%.3"]], "['a%.1', 'a%.2', 'a%.3']"),
        ([["l.0"], ["l.1", "l.2"], ["l.3"]], "['l.1', 'l.2'],"),
    ],
)  # fmt: skip
def test_runs_of_numbered_modules_are_one_expression(groups, text):
    said = fsdp2_lines.grouped_text(groups)
    assert text in said
    assert eval(f"[{said}]") == groups


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("layers.0-1;layers.2,layers.4", [("layers.0", "layers.1"), ("layers.2", "layers.4")]),
        ("layers.*", [("layers.0", "layers.1", "layers.2", "layers.3", "layers.4")]),
        (
            "layers.[01],layers.3;layers.4.*",
            [("layers.0", "layers.1", "layers.3"), ("layers.4.weight", "layers.4.bias")],
        ),
        ("layers.1-3,keep,bf16", [("layers.1", "layers.2", "layers.3")]),
    ],
)  # fmt: skip
def test_groups_in_a_name_are_modules(text, groups):
    plan = make_plan(f"fsdp2:{text}", made(5, root=2), PRICING)
    found = list(dict.fromkeys(group.modules for group in plan.sharding.groups if group.modules))
    assert found == groups
    assert {group.reshard for group in plan.sharding.groups if group.modules} == {"keep" not in text}
    again = fsdp2_knobs.pattern_text(groups)
    assert fsdp2_knobs.modules_of([part.split(",") for part in again.split(";")], made(5, root=2)) == tuple(groups)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers.0-7", "no module of 'made' is called 'layers.5': did you mean layers"),
        ("blocks.3", "no module of 'made' is called 'blocks.3'"),
        ("layers.9*", r"no module of 'made' is called 'layers.9\*'"),
        ("layers.3-1", "no module of 'made' is called 'layers.3-1'"),
        ("layers.0-2;layers.2", "module 'layers.2' is in two groups: name it once"),
    ],
)
def test_groups_that_no_model_has_are_refused(text, message):
    with pytest.raises(PlanError, match=message):
        make_plan(f"fsdp2:{text}", made(5), PRICING)


def test_lines_state_resharding_and_types():
    knobs = FsdpKnobs(reshard=False, gather_dtype="bfloat16", reduce_dtype="float32")
    plan = fsdp2.to_plan(knobs, made(3), PRICING)
    assert fsdp2.exact(plan, made(3)) == knobs
    text = fsdp2.render(knobs, made(3))
    assert "policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)" in text
    assert "reshard_after_forward=False, mp_policy=policy)" in text
    assert "fully_shard(model, mp_policy=policy)" in text


@pytest.mark.parametrize("target", ["fsdp2", "hsdp"])
@pytest.mark.parametrize(
    "groups", [None, (("a", "b"), ("c",)), tuple((f"layers.{i}",) for i in range(5)), (("x",), ("x1", "x2", "x3"))]
)
def test_lines_wrap_these_groups(target, groups, monkeypatch):
    """Run with stand-ins for PyTorch."""
    workload = made(5)
    knobs = FsdpKnobs(groups, replicas=1 if target == "fsdp2" else 2)
    text = CONFIG_TARGETS[target].text.render(knobs, workload)
    lines = [line for line in text.splitlines() if not line.startswith("from torch")]
    model, wrapped, meshes = Model(), [], []
    monkeypatch.setenv("WORLD_SIZE", "8")
    found = {
        "model": model,
        "fully_shard": lambda modules, **given: wrapped.append((modules, given)),
        "init_device_mesh": lambda kind, shape, mesh_dim_names: meshes.append(shape) or shape,
    }
    exec("\n".join(lines), found)
    expected = [[f"layers.{i}"] for i in range(5)] if groups is None else [list(group) for group in groups]
    assert [modules for modules, _ in wrapped] == [*expected, model]
    assert meshes == ([] if target == "fsdp2" else [(2, 4)])
    assert all(("mesh" in given) == (target == "hsdp") for _, given in wrapped)


class Model:
    """A stand-in whose modules are their names."""

    def get_submodule(self, name):
        return name


def test_settings_in_a_name_are_those_of_the_plan():
    plan = make_plan("fsdp2:2,keep,ahead=3,bf16,reduce=fp32", made(5, root=2), PRICING)
    *groups, root = plan.sharding.groups
    assert [group.modules for group in groups] == [("layers.0", "layers.1"), ("layers.2", "layers.3"), ("layers.4",)]
    assert {(group.reshard, group.forward_prefetch, group.backward_prefetch) for group in groups} == {(False, 3, 3)}
    assert (plan.sharding.gather_dtype, plan.sharding.reduce_dtype) == ("bfloat16", "float32")
    assert not root.modules
    assert make_plan("fsdp2:1", made(5), PRICING) == make_plan("fsdp2", made(5), PRICING)
    assert make_plan("hsdp:2", made(5), replace(PRICING, per_host=2)).sharding.replicas == 2


@pytest.mark.parametrize(
    "name", ["fsdp2:", "fsdp2:0", "fsdp2:keep=1", "hsdp:bf15", "fsdp2:reduce=int8", "fsdp2:ahead=x"]
)
def test_other_settings_are_refused(name):
    with pytest.raises(
        UsageError,
        match=r"unknown setting '.*'(\. Settings: a number of blocks per group|: did you mean (keep|bf16)\?)",
    ):
        make_plan(name, made(3), PRICING)


@pytest.mark.parametrize(
    ("workload", "cluster", "workers"),
    [
        ("resnet50-v100", "v100-10gbe", 16),
        ("gnmt-pipedream", "nccl:h20x8,200Gbps", 96),
        ("bert-large-seq64-reconstructed", "nccl:v100x8,25Gbps", 32),
    ],
)
def test_tuned_settings_are_predicted_by_the_name_that_is_printed(workload, cluster, workers):
    workload, cluster = load_workload(workload), load_cluster(cluster)
    tuned = tune(workload, cluster, workers, "fsdp2")
    (name,) = re.findall(r'--plan "(.*)"', tuned.rendered)
    prediction = predict(workload, cluster, name, workers)
    assert prediction.plan == tuned.plan
    assert prediction.iteration_time == tuned.outcomes[0].tuned_time


def test_a_name_states_every_setting_that_it_can():
    workload = replace(made(4), computed_in="bfloat16")
    groups = (("layers.0", "layers.1"), ("layers.2", "layers.3"))
    for ahead, inputs, separate, reshard in product(
        ((0, 1), (0, 2), (2, 1), (2, 2)), (1, 2), (False, True), (True, False)
    ):
        for types in (("", ""), ("bfloat16", "float32"), ("", "float16")):
            for knobs in (FsdpKnobs(None, *ahead, 1, reshard, *types, inputs, separate),
                          FsdpKnobs(groups, *ahead, None, reshard, *types, inputs, separate)):  # fmt: skip
                plan = make_plan(plan_name(knobs), workload, PRICING)
                assert plan == fsdp2.to_plan(knobs, workload, PRICING)
    for other in (FsdpKnobs(gather_dtype="float64"), FsdpKnobs(replicas=2), FsdpKnobs(reshard=(True,)),
                  FsdpKnobs(backward_prefetch=0)):  # fmt: skip
        assert not plan_name(other)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("fsdp2:bf17", r"'bf17': did you mean bf16\?"),
        ("hsdp:replicas=4", "'replicas=4': replicas follow the nodes"),
    ],
)
def test_a_setting_that_is_nearly_one_is_suggested(name, meant):
    with pytest.raises(UsageError, match=f"unknown setting {meant}"):
        make_plan(name, made(4), PRICING)


@pytest.mark.covering
@pytest.mark.parametrize("target", ["fsdp2", "hsdp", "fsdp1"])
@pytest.mark.parametrize(("how", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_a_cast_of_what_is_sent_is_a_policy(target, how, dtype):
    """The plan has the types of the lines, and their price; in mixed precision gradients alone are cast."""
    cluster, workload = load_cluster("nccl:v100x8,25Gbps"), compressed(made(4, root=2), how)
    tuned = tune(workload, cluster, 16, target)
    assert f"param_dtype=torch.{dtype}, reduce_dtype=torch.{dtype}" in tuned.rendered
    assert (tuned.plan.sharding.gather_dtype, tuned.plan.sharding.reduce_dtype) == (dtype, dtype)
    mixed = replace(workload, computed_in="bfloat16")
    assert f"param_dtype=torch.bfloat16, reduce_dtype=torch.{dtype}" in tune(mixed, cluster, 16, target).rendered


@pytest.mark.parametrize("target", ["fsdp2", "hsdp", "fsdp1", "zero-3", "deepspeed"])
def test_powersgd_is_refused_where_gradients_are_sharded(target):
    workload = compressed(made(4, root=2), "powersgd:4")
    with pytest.raises(
        UsageError, match=r"powersgd:4 compresses all-reduces, .* give --compression fp16 or bf16, or a"
    ):
        tune(workload, load_cluster("nccl:v100x8,25Gbps"), 16, target)
    with pytest.raises(UsageError, match="powersgd:4 compresses all-reduces"):
        predict(workload, load_cluster("nccl:v100x8,25Gbps"), target, 16)


@pytest.mark.parametrize("how", ["none", "bf16"])
def test_imports_are_on_top_of_the_lines(how):
    text = tune(compressed(made(4, root=2), how), load_cluster("nccl:v100x8,25Gbps"), 16, "hsdp").rendered
    statements = ast.parse(text).body
    kinds = [isinstance(one, (ast.Import, ast.ImportFrom)) for one in statements]
    assert kinds == sorted(kinds, reverse=True)
    named = [alias.name for one in statements[: sum(kinds)] for alias in one.names]
    cast = how == "bf16"
    policy = ["MixedPrecisionPolicy"] * cast
    assert named == ["os", *["torch"] * cast, "init_device_mesh", *policy, "fully_shard"]


def test_padding_that_is_not_known_is_said():
    cluster, workload = load_cluster("v100-10gbe"), made(4, root=2)
    shaped = replace(workload, layers=tuple(replace(one, shape=(one.elements,)) for one in workload.layers))
    for asked, count in ((workload, 1), (shaped, 0)):
        notes = [predict(asked, cluster, plan, 4).notes for plan in ("fsdp2", "ddp")]
        notes.append(tune(asked, cluster, 4, "fsdp2").notes)
        assert [sum("padding of dimension 0" in note for note in one) for one in notes] == [count, 0, count]
    said = invoke(["memory", "resnet50-memory", "--cluster", "v100-10gbe", "--workers", "4", "--plan", "fsdp2"])
    assert "padding of dimension 0" in " ".join(said.output.split())


def test_buckets_are_listed_as_they_are_gathered():
    cluster, workload = load_cluster("v100-10gbe"), made(3, root=2)
    assert predict(workload, cluster, "fsdp2", 4).bucket_bytes == (404, 404, 404, 8)
    assert predict(workload, cluster, "fsdp2:bf16,reduce=fp32", 4).bucket_bytes == (202, 202, 202, 4)


def test_the_number_of_groups_is_not_limited_but_their_size_is():
    cluster = load_cluster("v100-10gbe")
    with pytest.raises(
        UsageError, match="--max-buckets does not work with --for fsdp2: it takes --max-bucket and --memory"
    ):
        tune(made(3), cluster, 4, "fsdp2", Limits(max_buckets=2))
    tuned = tune(made(6, root=1000), cluster, 4, "fsdp2", Limits(2 * 432))  # the root may have any size
    assert all(len(group.modules) <= 2 for group in tuned.plan.sharding.groups)
    with pytest.raises(PlanError, match="FSDP2 gathers whole blocks: raise it"):
        tune(made(3), cluster, 4, "fsdp2", Limits(100))


def test_lines_keep_some_groups_and_set_what_torch_2_13_has(monkeypatch):
    """Each group with its own reshard_after_forward, run with stand-ins for PyTorch."""
    workload = made(6)
    knobs = FsdpKnobs(reshard=(True, True, False, False, False, True), inputs=2, separate=True)
    plan = fsdp2.to_plan(knobs, workload, PRICING)
    assert fsdp2.exact(plan, workload) == knobs
    assert [group.reshard for group in plan.sharding.groups if group.modules] == list(knobs.reshard)
    assert (plan.sharding.reduce_inputs, plan.sharding.separate) == (2, True)
    text = fsdp2.render(knobs, workload)
    assert "kept = {*range(2, 5)}" in text
    assert "model.set_reduce_scatter_max_input_buffers(2)" in text
    assert "model.set_separate_reduce_scatter_group(True)" in text
    given = []
    shard = {"model": Sharded(), "fully_shard": lambda modules, **words: given.append(words)}
    exec("\n".join(line for line in text.splitlines() if not line.startswith("from torch")), shard)
    assert [words.get("reshard_after_forward") for words in given] == [*knobs.reshard, None]
    assert fsdp2.config(knobs)["reshard_after_forward"] == list(knobs.reshard)
    with pytest.raises(PlanError, match="given for 6 groups, and there are 5"):
        fsdp2.to_plan(knobs, made(5), PRICING)
    assert fsdp2_lines._runs_of([1, 2, 4, 5, 6, 9]) == "1, 2, *range(4, 7), 9"


class Sharded:
    """A stand-in for a model after ``fully_shard``."""

    def get_submodule(self, name):
        return name

    def set_reduce_scatter_max_input_buffers(self, count):
        assert count == 2

    def set_separate_reduce_scatter_group(self, enable):
        assert enable


@pytest.mark.parametrize("what", ["bucket", "gradient"])
def test_layers_of_a_trace_without_names_are_no_modules(what):
    """One line in place of groups that no model has; a layer that is a bucket is not cut, which tune says for DDP."""
    traced = Workload("traced", tuple(Layer(f"{what}{i}", 1e-3, 1e-3, 4_000_000) for i in (2, 1, 0)), grain=what)
    cluster = load_cluster("v100-10gbe")
    with pytest.raises(DataError, match=rf"{what}s of a trace without names.*osf profile"):
        tune(traced, cluster, 4, "fsdp2")
    said = [note for note in tune(traced, cluster, 4).notes if "smaller buckets" in note]
    assert len(said) == (what == "bucket")


def test_nothing_to_send_is_not_taken_for_perfect_scaling():
    traced = Workload("traced", (Layer("input", 1e-3, 1e-3, 0),))
    cluster = load_cluster("v100-10gbe")
    assert any("nothing is sent" in note for note in predict(traced, cluster, "wfbp", 4).warnings)
    assert any("nothing is sent" in note for note in tune(traced, cluster, 4).warnings)
    assert predict(traced, cluster, "wfbp", 1).warnings == ()
