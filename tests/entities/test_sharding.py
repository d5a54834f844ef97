"""Sharded plans: bytes, checks, files, and groups of modules."""

from __future__ import annotations

import pytest

from osfmodel import DataError, Layer, Plan, PlanError, Workload, load_plan
from osfmodel.entities.files import profiles
from osfmodel.entities.modules import blocks, wrapped
from osfmodel.entities.plan import in_one
from osfmodel.entities.sharding import ParameterGroup, Sharding, gathered_bytes, padded_elements, reduced_bytes


def layer(name, shape, dtype="float32"):
    size = 4 if dtype == "float32" else 2
    for dimension in shape:
        size *= dimension
    return Layer(name, 1.0, 2.0, size, dtype, shape=shape)


MODEL = Workload(
    "model",
    (
        layer("embedding.weight", (31, 9)),
        layer("layers.0.up.weight", (10, 9)),
        layer("layers.0.up.bias", (10,)),
        layer("layers.1.up.weight", (7, 9)),
        layer("layers.1.up.scale", (7,), "bfloat16"),
        layer("head.weight", (31, 9)),
    ),
)
GROUPS = [ParameterGroup(("layers.0",)), ParameterGroup(("layers.1",), reshard=2)]


@pytest.mark.parametrize(
    ("shape", "ranks", "elements"), [((10,), 8, 16), ((31, 9), 3, 33 * 9), ((4, 2, 2), 2, 16), ((1, 100), 4, 400)]
)
def test_parameters_are_padded_on_their_first_dimension(shape, ranks, elements):
    """Sizes seen with torch: 10 on 8 ranks are 16 elements."""
    assert padded_elements(layer("a", shape), ranks) == elements


def test_without_a_shape_a_parameter_has_one_dimension():
    assert padded_elements(Layer("a", 1.0, 1.0, 40), 8) == 16


def test_bytes_follow_from_the_types():
    one = [layer("a", (10,))]
    assert gathered_bytes(Sharding(()), one, 8) == reduced_bytes(Sharding(()), one, 8) == 64
    mixed = Sharding((), gather_dtype="bfloat16", reduce_dtype="float32")
    assert (gathered_bytes(mixed, one, 8), reduced_bytes(mixed, one, 8)) == (32, 64)
    assert reduced_bytes(Sharding((), gather_dtype="bfloat16"), one, 8) == 32


def test_a_parameter_belongs_to_the_innermost_group_and_the_rest_to_the_root():
    plan = wrapped(MODEL, [*GROUPS, ParameterGroup(("layers.1.up",))], Sharding(()))
    plan.require_valid(MODEL)
    found = {group.modules: [block.layer for block in bucket.blocks] for bucket, group in pairs(plan)}
    assert found == {
        ("layers.0",): ["layers.0.up.weight", "layers.0.up.bias"],
        ("layers.1.up",): ["layers.1.up.scale"],
        (): ["embedding.weight", "head.weight"],
    }
    root = plan.sharding.groups[-1]
    assert (root.first, root.last, root.reduced_last, root.reshard) == ("embedding.weight", "head.weight", True, False)
    assert not plan.sharding.groups[0].reduced_last


def pairs(plan):
    return zip(plan.buckets, plan.sharding.groups, strict=True)


def test_a_group_of_two_types_is_two_buckets():
    plan = wrapped(MODEL, GROUPS, Sharding((), replicas=2))
    assert [group.modules for _, group in pairs(plan)] == [("layers.0",), ("layers.1",), ("layers.1",), ()]
    assert plan.strategy == "hybrid-sharded"


def test_an_unknown_module_is_named():
    with pytest.raises(PlanError, match=r"no parameters in a module 'layer.1': did you mean layers.1"):
        wrapped(MODEL, [ParameterGroup(("layer.1",))], Sharding(()))


def test_plan_files_keep_the_rules(tmp_path):
    plan = wrapped(MODEL, GROUPS, Sharding((), 2, "bfloat16", "float32", 2, separate=True, micro_batches=3, keep=True))
    profiles.save(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sharding": Sharding((ParameterGroup(),) * 2)}, "1 buckets, and its sharding 2 groups"),
        ({"sharding": Sharding((ParameterGroup(),)), "channels": 2}, "shards parameters"),
        ({"sharding": Sharding((ParameterGroup(),)), "forward_overlap": True}, "shards parameters"),
    ],
)
def test_rules_that_do_not_go_together_are_refused(change, words):
    workload = Workload("w", (Layer("a", 1.0, 1.0, 40),))
    with pytest.raises(PlanError, match=words):
        Plan("w", in_one(workload).buckets, strategy="fully-sharded", **change)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sharding((), replicas=0), "replicas of a sharded plan"),
        (lambda: Sharding((), reduce_dtype="float33"), "'float33'.*one of"),
        (lambda: ParameterGroup(reshard=1), "ranks that keep a group"),
        (lambda: Sharding((), replicas=3).ranks(4), "4 workers do not make 3 replicas"),
    ],
)
def test_impossible_rules_are_refused(make, words):
    with pytest.raises((DataError, PlanError), match=words):
        make()


def test_a_shape_fits_the_bytes():
    with pytest.raises(DataError, match="44 gradient bytes, its shape makes 40"):
        Layer("a", 1.0, 1.0, 44, shape=(10,))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["embed.weight", "layers.0.up.weight", "layers.1.up.weight", "norm.weight"], ["layers.0", "layers.1"]),
        (["h.0.ln_1.weight", "h.0.mlp.0.weight", "h.1.ln_1.weight", "ln_f.weight"], ["h.0", "h.1"]),
        (["layer1.0.conv1.weight", "layer1.1.conv1.weight", "layer2.0.conv1.weight"], ["layer1.0", "layer1.1"]),
        (["encoder.layer_0.mlp.0.weight", "encoder.layer_1.mlp.0.weight"], ["encoder.layer_0", "encoder.layer_1"]),
        (["embed.weight", "layers.0", "layers.1"], ["layers.0", "layers.1"]),
        (["conv1", "conv2", "fc"], ["conv1", "conv2", "fc"]),
        (["a.block1.weight", "a.block2.weight", "a.norm0.weight", "head.weight"], ["a.block1", "a.block2"]),
        (["dropout.1.weight", "head.weight"], []),
    ],
)
def test_blocks_are_the_members_of_the_outermost_lists(names, found):
    """A list of one member, such as layer2 of the third model, is none."""
    layers = [Layer(name, 1.0, 2.0, 400) for name in names]
    assert blocks(Workload("named", tuple(layers))) == tuple(found)


def test_small_modules_whose_names_end_in_numbers_are_no_blocks():
    sizes = {"a.block1.weight": 40_000, "a.block2.weight": 40_000, "a.norm0.weight": 4, "a.norm5.weight": 4}
    layers = [Layer(name, 1.0, 2.0, size) for name, size in sizes.items()]
    assert blocks(Workload("dense", tuple(layers))) == ("a.block1", "a.block2")
