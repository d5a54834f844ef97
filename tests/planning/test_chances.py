"""Chances of a tuned configuration: draws shared by both, ties for the default, and verdicts that hold back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.engine.bands import gain_doubt
from osfmodel.entities.units import MIB
from osfmodel.planning.results import DRAWS, Chance, Outcome
from osfmodel.planning.tuning.chances import TIE, best_of, chance, drawn, draws, gain_over, times
from osfmodel.planning.tuning.settling import less_tiny
from osfmodel.planning.tuning.task import TuningProblem
from osfmodel.targets import CONFIG_TARGETS
from tests.kept import tuned

WORKLOAD = osf.load_workload("resnet50-v100")


def test_draws_are_the_same_every_time_and_centred():
    assert len(draws()) == DRAWS
    assert draws() == draws()
    assert all(abs(sum(column) / DRAWS) < 1e-9 for column in list(zip(*draws(), strict=True))[:3])
    assert all(0 <= draw.slowdown <= 1 and 0 <= draw.hook <= 1 for draw in draws())


def test_a_chance_counts_draws_and_holds_nine_tenths_of_gains():
    lost = 3
    found = chance([0.9] * (DRAWS - lost) + [1.1] * lost, [1.0] * DRAWS)
    assert found.wins == 1 - lost / DRAWS
    assert found.high == pytest.approx(0.1)
    assert found.low < 0.1
    assert not Chance(-0.01, 0.1, 0.9).sure
    assert Chance(0.01, 0.1, 1.0).sure
    assert gain_over([0.9, 1.1], [1.0, 1.0]) == pytest.approx(0)


@pytest.mark.parametrize(("gain", "sure"), [(0.01, False), (0.019, False), (0.03, True)])
def test_a_gain_must_exceed_what_pairs_of_measured_plans_are_off_by(gain, sure):
    """Nine tenths of measured ratios are within 2 %, here as everywhere."""
    found = chance([1 - gain] * DRAWS, [1.0] * DRAWS, doubt=0.02)
    assert found.sure == sure
    assert found.low == pytest.approx(gain - 0.02, abs=0.004)
    assert found.high == pytest.approx(gain + 0.02, abs=0.004)


def test_a_small_gain_on_a_measured_network_is_doubtful_too():
    """As fast a network as was measured, no effects: draws of prices alone would all say the same."""
    job, network = WORKLOAD.scaled(5), osf.load_cluster("emulated-4x2500mbit")
    pricing = pricing_of(network, 4)
    problem = osf.tune(job, network, 4).outcomes[0]
    assert gain_doubt(problem.plan, pricing) > 0.005
    assert problem.chance is None or problem.chance.high - problem.chance.low > gain_doubt(problem.plan, pricing)


def test_the_default_has_no_chance_of_its_own_and_is_kept_where_nothing_is_gained():
    found = osf.tune(WORKLOAD, osf.load_cluster("nccl:h100x8,400Gbps,ib"), 8)
    assert found.verdict.startswith("Keep the default")
    assert found.outcomes[0].chance is None or found.outcomes[0].gain < 0.005


def test_a_verdict_says_to_leave_it_alone_where_the_interval_holds_zero():
    found = tuned(WORKLOAD.name, "v100-10gbe", 16, "ddp")
    outcome = found.outcomes[0]
    assert outcome.chance is not None
    unsure = replace(outcome, default_time=outcome.tuned_time * 1.02, chance=Chance(-0.01, 0.03, 0.8))
    assert "Leave the default alone" in replace(found, outcomes=(unsure,)).verdict
    assert replace(found, outcomes=(unsure,)).improvement
    assert not replace(found, outcomes=(unsure,)).recommended
    sure = replace(unsure, chance=Chance(0.01, 0.03, 1.0))
    verdict = replace(found, outcomes=(sure,)).verdict
    assert replace(found, outcomes=(sure,)).recommended
    assert "Leave" not in verdict
    assert "1.0% to 3.0%" in verdict


def test_optimal_is_not_said_beside_a_tuned_time_that_differs_in_print():
    found = osf.tune(WORKLOAD, replace(osf.load_cluster("v100-10gbe"), usual_effects=False), 16)
    time = found.outcomes[0].lower_bound
    apart = Outcome(16, time * 1.0004, time * 1.1, time * 0.99, time)
    assert "Optimal" not in replace(found, outcomes=(apart,)).verdict
    alike = Outcome(16, time, time * 1.1, time, time)
    assert "Optimal" in replace(found, outcomes=(alike,)).verdict


def test_no_configuration_is_worse_than_the_default_on_average():
    for cluster, workers in (("v100-10gbe", 16), ("v100-56gib", 16), ("ring:200us,10Gbps", 8)):
        found = tuned(WORKLOAD.name, cluster, workers, "ddp").outcomes[0]
        assert found.chance is None or found.chance.wins >= 0.5, cluster


class Options:
    """A tuning problem of which only the mean gains (per cent) and the buckets of its options are known; 0: default."""

    def __init__(self, gains, buckets):
        self.drawn, self.gains, self.buckets = [self] * DRAWS, gains, buckets
        self.target = SimpleNamespace(convert=SimpleNamespace(default_knobs=lambda: 0))

    def times(self, knobs, like=None):
        return [1 - self.gains[knobs] / 100]

    def planned(self, knobs):
        return [(SimpleNamespace(buckets=[None] * self.buckets[knobs]), None)]


@pytest.mark.parametrize(
    ("gains", "buckets", "best"),
    [
        ((0, 0.15, 0.1), (5, 3, 1), 0),
        ((0, 0.3, 0.1), (5, 3, 1), 1),
        ((0, 0.9, 0.8), (5, 3, 2), 2),
        ((0, 0.9, 0.8), (5, 3, 3), 1),
        ((0, 0.9, 0.6), (5, 3, 2), 1),
    ],
)
def test_ties_go_to_the_default_and_then_to_fewest_buckets(gains, buckets, best):
    """Mean gains within 0.2 % of the largest are a tie."""
    assert best_of(Options(gains, buckets), [1, 2, 0]) == best


def test_what_does_best_on_plausible_networks_is_recommended(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "osfmodel.planning.tuning.settling.best_of", lambda task, options: asked.extend(options) or options[-1]
    )
    found = osf.tune(WORKLOAD, osf.load_cluster("v100-10gbe"), 16)
    assert found.knobs.limits == asked[-1].limits
    assert len({knobs.limits for knobs in asked}) > 3


def test_draws_of_a_sharded_step_take_as_long_as_each_would_if_issued_by_itself():
    """Draws share one issued step for speed alone: not even the last bit of a time may differ."""
    workload = osf.load_workload("resnet50-cpu")
    pricing = pricing_of(osf.load_cluster("v100-10gbe"), 16)
    for name in ("fsdp2", "hsdp", "zero-3"):
        target = CONFIG_TARGETS[name]
        problem = TuningProblem(workload, target, (pricing,), objective=target.objective)
        knobs = target.convert.default_knobs()
        shared, alone = times(drawn(problem), knobs), [one.times(knobs)[0] for one in drawn(replace(problem))]
        assert shared == alone
        assert len(set(shared)) == DRAWS


def test_no_bucket_is_so_small_that_a_message_of_its_own_is_not_worth_it():
    """The exact plan ends in one of 37 KiB; as much as a tie is given for a larger one."""
    workload, cluster = osf.load_workload("resnet50-pipedream"), osf.load_cluster("nccl:v100x8,25Gbps/node,tcp")
    exact = osf.predict(workload, cluster, "optimal", 32)
    assert min(bucket.size for bucket in exact.plan.buckets) < 2**16
    found = osf.tune(workload, cluster, 32)
    assert min(bucket.size for bucket in found.plan.buckets) >= 2**16
    assert found.outcomes[0].tuned_time <= exact.iteration_time * (1 + 2 * TIE)


@pytest.mark.parametrize(
    ("ends", "first"),
    [((3, 4), (4,)), ((1, 4), (4,)), ((2, 4), None)],
)
def test_the_smallest_bucket_is_merged_or_doubled(ends, first):
    sizes = [MIB // 4, 2 * MIB, 2 * MIB, MIB // 8]
    found = list(less_tiny(ends, sizes))
    assert (found[0] if found else None) == first
    assert all(changed[-1] == len(sizes) for changed in found)
