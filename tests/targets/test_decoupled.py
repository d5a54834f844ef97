"""Groups of DeAR: modules in forward order up to a threshold."""

from __future__ import annotations

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.strategies import lower
from osfmodel.entities.units import MIB
from osfmodel.targets import decoupled
from osfmodel.targets.named_plans import make_plan


def model(sizes):
    """Modules of a weight and a bias; sizes of both in MiB."""
    rows = [
        (f"m{number}.{kind}", size) for number, both in enumerate(sizes) for kind, size in zip("wb", both, strict=True)
    ]
    return Workload("modules", tuple(Layer(name, 1.0, 2.0, size * MIB) for name, size in rows))


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([(20, 1), (3, 1), (1, 1)], [["m2.b", "m2.w", "m1.b", "m1.w"], ["m0.b", "m0.w"]]),
        ([(20, 1), (3, 0.5)], [["m1.b", "m1.w", "m0.b", "m0.w"]]),
        ([(1, 1), (40, 1), (1, 1)], [["m2.b", "m2.w"], ["m1.b", "m1.w"], ["m0.b", "m0.w"]]),
        ([(30, 30)], [["m0.b", "m0.w"]]),
    ],
)
def test_a_group_ends_before_the_module_that_would_fill_it(sizes, groups):
    """21 MiB and 4 MiB make 25, the threshold; modules are never cut, and go in the order in which they are ready."""
    sizes = [tuple(int(4 * size) for size in both) for both in sizes]
    workload = model(sizes)
    found = decoupled.groups_of(workload, 4 * decoupled.THRESHOLD)
    assert [[workload.gradients.names[item] for item in group] for group in found] == groups


def test_half_precision_counts_as_full():
    layers = tuple(Layer(f"m{number}.w", 1.0, 1.0, 7 * MIB, "bfloat16") for number in range(2))
    assert len(decoupled.groups_of(Workload("half", layers))) == 2
    singles = tuple(Layer(f"m{number}.w", 1.0, 1.0, 7 * MIB) for number in range(2))
    assert len(decoupled.groups_of(Workload("full", singles))) == 1


def test_the_named_plan_scatters_and_gathers_each_group():
    workload = model([(20, 1), (3, 1), (1, 1)])
    plan = make_plan("decoupled", workload, Pricing.free(4))
    assert (plan.strategy, plan.forward_overlap) == ("decoupled", True)
    kinds = [one.kind for one in lower(workload, plan, Pricing.free(4)).operations if one.size]
    assert kinds == ["reduce_scatter"] * 2 + ["all_gather"] * 2
