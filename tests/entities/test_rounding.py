"""One answer on every Python: no sum hangs on the version, and no choice between plans on rounding."""

from __future__ import annotations

import builtins
import random
import sys
from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import AffineCost
from osfmodel.entities.plan import PLAIN, Objective
from osfmodel.entities.rounding import TIE, just_below, least, plain_sum, ranked, within
from osfmodel.solve import SOLVERS, Question
from osfmodel.solve import exact as merge
from osfmodel.solve.exact import optimal, pareto
from osfmodel.solve.solution import Limits
from osfmodel.solve.under_effects import plan_under_effects
from tests import exhaustive
from tests.sums import BUILT_IN, compensated, refused

TENTHS = [0.1] * 10


def test_the_stand_in_is_the_sum_of_later_pythons():
    rng = random.Random(12)
    cases = [[rng.uniform(-1, 1) * 10 ** rng.randint(-9, 9) for _ in range(rng.randint(0, 40))] for _ in range(300)]
    cases += [
        TENTHS,
        [1, 2, 0.1, 0.2, 0.3],
        [True, 0.1, 0.2, 0.7],
        [1e308, 1e308, -1e308],
        [0.1, Fraction(1, 3), 0.2],
    ]
    assert compensated(TENTHS) == 1.0
    assert all(compensated(case) == pytest.approx(BUILT_IN(case), rel=1e-12, abs=1e-12) for case in cases)
    if sys.version_info >= (3, 12):
        assert [compensated(case) for case in cases] == [BUILT_IN(case) for case in cases]


def test_a_plain_sum_adds_as_a_clock_does():
    clock = 0.0
    for step in TENTHS:
        clock += step
    assert plain_sum(TENTHS) == clock != compensated(TENTHS)
    assert plain_sum([Fraction(1, 3)] * 3) == 1
    assert plain_sum([]) == 0


def test_a_sum_of_floats_in_our_code_is_told():
    assert eval("sum([0.1, 0.2])", {"sum": refused, "__name__": "tests.any"}) == 0.1 + 0.2
    assert eval("sum([1, 2])", {"sum": refused, "__name__": "osfmodel.any"}) == 3
    with pytest.raises(AssertionError, match=r"osfmodel\.any adds up floats"):
        eval("sum([0.1, 0.2])", {"sum": refused, "__name__": "osfmodel.any"})


def test_of_values_that_rounding_sets_apart_the_rank_decides():
    more = nextafter(1.0, 2)
    assert least([("b", more), ("a", 1.0)], lambda row: row[1]) == ("b", more)
    assert least([(3, 1.0), (2, more), (1, 1 + 1e-9)], lambda row: row[1], lambda row: row[0]) == (2, more)
    assert ranked([(3, 1.0), (1, 2.0), (2, more)], lambda row: row[1], lambda row: row[0]) == [
        (2, more), (3, 1.0), (1, 2.0)
    ]  # fmt: skip
    assert just_below(1.0) < 1.0 < within(1.0) == 1 + TIE
    assert just_below(Fraction(1, 3)) == within(Fraction(1, 3)) == Fraction(1, 3)
    assert just_below(-1.0) < -1.0 < within(-1.0)
    assert just_below(inf) == within(inf) == inf
    assert least([3, 2, 1], lambda row: inf) == 3


def answers(model: osf.Workload, network: osf.Cluster) -> list[object]:
    """Predictions and settings, to the last digit."""
    again = replace(model)  # which adds its times up anew
    found = osf.compare(again, network, 8, ["ddp", "optimal", "mg-wfbp", "us-byte", "planned", "horovod"])
    rows = [(row.plan, row.timeline.iteration_time, row.bound.value) for row in found.predictions]
    tuned = osf.tune(again, network, 8)
    return [again.compute_time, *rows, tuned.plan, tuned.rendered, [one.tuned_time for one in tuned.outcomes]]


@pytest.mark.parametrize(
    "effects", [osf.Effects(), osf.Effects(hook_time=3e-5, copy_in=2e-12, straggler_deviation=0.02)]
)
def test_answers_do_not_hang_on_the_sum_of_the_python(effects, monkeypatch):
    model, network = osf.load_workload("alexnet-pipedream"), replace(osf.load_cluster("v100-10gbe"), effects=effects)
    found = {}
    for name, one in (("plain", plain_sum), ("compensated", compensated), ("refused", refused)):
        monkeypatch.setattr(builtins, "sum", one)
        found[name] = answers(model, network)
    assert found["plain"] == found["compensated"] == found["refused"]


def even(count: int, dtypes: tuple[str, ...] = ("float32",)) -> osf.Workload:
    """Alike layers, behind whose first buckets the network never catches up, so that very many plans take as long."""
    layers = [osf.Layer(f"t{i}", 0.01, 0.02, 40_000, dtypes[i % len(dtypes)]) for i in range(count)]
    return osf.Workload("even", tuple(layers), batch_size=8, update_time=0.01)


PRICE = AffineCost(((0.013, 1.1e-6),))
"""0.057 s for a tensor that is ready 0.02 s after the last."""


def rounded_otherwise(model: osf.Workload, rng: random.Random) -> osf.Workload:
    """The same with each time one step of rounding up or down, or none."""
    layers = [
        replace(
            layer,
            forward_time=nextafter(layer.forward_time, rng.choice([0, layer.forward_time, 1])),
            backward_time=nextafter(layer.backward_time, rng.choice([0, layer.backward_time, 1])),
        )
        for layer in model.layers
    ]
    return replace(model, layers=tuple(layers))


def under_effects(question: Question) -> osf.Solution:
    effects = osf.Effects(hook_time=1e-4, copy_in=1e-9)
    return plan_under_effects(
        replace(question, pricing=replace(question.pricing, effects=effects)), SOLVERS["optimal"].solve
    )


def few(question: Question) -> osf.Solution:
    return optimal.solve(replace(question, limits=Limits(max_buckets=3)))


OVERLAP = Objective(forward_overlap=True)
SEARCHES = {
    "optimal": (optimal.solve, 24, PLAIN),
    "few": (few, 24, PLAIN),
    "all": (exhaustive.solve, 9, PLAIN),
    "us-byte": (SOLVERS["us-byte"].solve, 24, OVERLAP),
    "planned": (SOLVERS["planned"].solve, 12, PLAIN),
    "planned-overlap": (SOLVERS["planned"].solve, 7, OVERLAP),
    "effects": (under_effects, 12, PLAIN),
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "bfloat16")])
@pytest.mark.parametrize("name", SEARCHES)
def test_rounding_chooses_no_plan(name, dtypes):
    search, count, objective = SEARCHES[name]
    model, rng = even(count, dtypes), random.Random(3)
    plan = search(Question(model, Pricing.of(PRICE), objective)).require_plan()
    for _ in range(5):
        other = rounded_otherwise(model, rng)
        assert search(Question(other, Pricing.of(PRICE), objective)).require_plan().buckets == plan.buckets


def test_rounding_chooses_no_runs_of_several_channels():
    rng, found = random.Random(5), set()
    for _ in range(12):
        problem = merge.MergeProblem.of(rounded_otherwise(even(24), rng).gradients, Limits())
        found.add(pareto.runs(problem, Pricing.of(PRICE), 2).ends)
    assert len(found) == 1


def test_of_equal_plans_the_fewest_buckets():
    """Gradients that are ready together form one bucket, even if start-ups are free."""
    layers = tuple(osf.Layer(f"t{i}", 0.0, 0.1 if i == 3 else 0.0, 1000) for i in range(4))
    question = Question(osf.Workload("alike", layers), Pricing.of(AffineCost(((0.0, 1e-6),))))
    for search in (optimal.solve, exhaustive.solve, SOLVERS["planned"].solve):
        assert [len(bucket.blocks) for bucket in search(question).require_plan().buckets] == [4]
    free = Question(even(9), Pricing.of(PRICE))
    count = len(optimal.solve(free).require_plan().buckets)
    assert count == len(exhaustive.solve(free).require_plan().buckets)


@pytest.mark.parametrize("target", ["ddp", "horovod", "fsdp2", "deepspeed", "megatron"])
def test_rounding_chooses_no_settings(target):
    model, network, rng = even(6), osf.load_cluster("v100-10gbe"), random.Random(7)
    model = replace(model, layers=tuple(replace(layer, gradient_bytes=4_000_000) for layer in model.layers))
    assert pricing_of(network, 8).cost()(4_000_000) > 0
    found = {osf.tune(rounded_otherwise(model, rng), network, 8, target).rendered for _ in range(3)}
    assert len(found) == 1
