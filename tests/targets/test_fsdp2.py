"""FSDP2: groups of modules as buckets, and the search for them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import Layer, Workload, load_cluster, predict, tune
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.errors import DataError, PlanError
from osfmodel.entities.plan import contiguous_plan, in_one, one_by_one
from osfmodel.targets import fsdp2
from osfmodel.targets.fsdp2 import RULES, FsdpKnobs

PRICING = Pricing.of(AffineCost(((2e-3, 1e-6),)), workers=4)


def made(sizes, root=0):
    """Modules of a weight and a bias each, and a parameter of the root's own."""
    layers = [Layer(f"{i}.{part}", 1e-3, 2e-3, 4 * size) for i, size in enumerate(sizes) for part, size in
              (("weight", size), ("bias", 1))]  # fmt: skip
    own = [Layer("scale", 1e-3, 1e-3, 4 * root)] if root else []
    return Workload("made", tuple(own + layers))


def names(plan):
    return [[block.layer for block in bucket.blocks] for bucket in plan.buckets]


def test_a_group_is_one_bucket_and_the_rest_is_the_roots():
    workload = made([5, 6, 7], root=3)
    plan = fsdp2.to_plan(FsdpKnobs((("2", "1"),)), workload, PRICING)
    plan.require_valid(workload)
    assert names(plan) == [["2.bias", "2.weight", "1.bias", "1.weight"], ["0.bias", "0.weight", "scale"]]
    assert plan.objective == RULES


def test_a_layer_is_a_module_where_names_have_no_dots():
    workload = Workload("layers", (Layer("conv", 1, 1, 4), Layer("fc", 1, 1, 4)))
    assert list(fsdp2.modules(workload)) == ["fc", "conv"]


def test_a_module_ends_after_those_inside_it():
    layers = (Layer("block.inner.weight", 1, 1, 4), Layer("block.scale", 1, 1, 4), Layer("fc.weight", 1, 1, 4))
    workload = Workload("nested", layers)
    assert list(fsdp2.modules(workload)) == ["fc", "block.inner", "block"]
    lines = fsdp2.config(FsdpKnobs((("fc",), ("block.inner",), ("block",))))["groups"]
    assert lines == [["block.inner"], ["block"], ["fc"]]


def test_a_group_of_two_dtypes_is_two_messages():
    layers = (Layer("0.weight", 1, 1, 40, "bfloat16"), Layer("0.bias", 1, 1, 40, "float32"))
    assert len(fsdp2.to_plan(FsdpKnobs(), Workload("mixed", layers), PRICING).buckets) == 2


def time(knobs, workload):
    return predict_timeline(workload, fsdp2.to_plan(knobs, workload, PRICING), PRICING).iteration_time


@settings(max_examples=25)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=5), st.sampled_from([one_by_one, in_one]))
def test_the_found_grouping_is_close_to_the_best(sizes, start):
    """Against all groupings; one end at a time is changed, so that a better one may need two."""
    workload = made(sizes)
    modules = [str(i) for i in reversed(range(len(sizes)))]
    best = min(
        time(fsdp2._grouped(modules, frozenset(ends)), workload)
        for count in range(len(sizes))
        for ends in combinations(range(1, len(sizes)), count)
    )
    found = fsdp2.from_plan(start(workload), workload, PRICING)
    assert time(found, workload) <= best * 1.02
    assert time(found, workload) <= time(FsdpKnobs(), workload)


def test_a_plan_under_other_rules_is_not_formed():
    workload = made([5, 6])
    with pytest.raises(PlanError, match="splits"):
        fsdp2.exact(in_one(workload), workload)
    assert fsdp2.exact(in_one(workload).under(RULES), workload) == FsdpKnobs()


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


def test_even_groups_are_of_every_number():
    """Four modules of one size: none cut off, halves, thirds (two together), quarters."""
    model = Workload("w", tuple(Layer(f"m{i}.weight", 1.0, 1.0, 1000) for i in range(4)))
    names = list(fsdp2.modules(model))
    assert [sorted(ends) for ends in fsdp2._even(names, model)] == [[], [2], [2, 3], [1, 2, 3]]


def test_a_module_travels_with_the_last_of_its_gradients():
    """Its bias is in the first bucket, its weight in the second: both go with the second."""
    layers = (Layer("a.weight", 1.0, 1.0, 8), Layer("b.weight", 1.0, 1.0, 8), Layer("b.bias", 1.0, 1.0, 8))
    model = Workload("w", layers)
    names = list(fsdp2.modules(model))
    assert names == ["b", "a"]
    assert sorted(fsdp2._nearest(names, contiguous_plan(model, [1, 3]), model)) == []
    assert sorted(fsdp2._nearest(names, contiguous_plan(model, [2, 3]), model)) == [1]
