"""The search over threshold and cycle time of Horovod's loop against all there are."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.horovod_loop import DEFAULT_THRESHOLD, Loop, steady_iteration
from osfmodel.entities.effects import Effects
from osfmodel.entities.units import MIB
from osfmodel.solve import Case, Limits
from osfmodel.targets import horovod_search
from osfmodel.targets.horovod_search import CYCLES, SIMULATED, best_settings


def case_of(rng: random.Random, largest: int, most: int = 9) -> Case:
    """Some tensors of up to so many bytes in about 40 ms, at a price at which fusion matters."""
    count = rng.randint(1, most)
    layers = [
        Layer(
            f"t{i}",
            0.001,
            rng.choice([0, 0.001, 0.004, 0.01]),
            rng.randint(1, largest),
            rng.choice(["float32", "float32", "float16"]),
        )
        for i in range(count)
    ]
    workload = Workload("w", tuple(layers), update_time=0.001)
    if rng.random() < 0.5:
        workload = workload.ahead(rng.choice([1.5, 4]))
    effects = Effects(negotiation=rng.choice([0, 2e-4]), negotiation_miss=1e-3, fusion_copy=0.001 / largest)
    pricing = Pricing.of(AffineCost(((0.002, rng.choice([0.001, 0.01]) / largest),)), effects, workers=2)
    pricing = replace(pricing, blocking=rng.random() < 0.5, per_host=rng.choice([1, 2, 4, 8]))
    return Case(workload, pricing, workload.compute_time)


def worst(cases, threshold, cycle, start=None):
    """The largest slow-down of these settings."""
    loop = replace(start or Loop(), threshold=threshold, cycle=cycle)
    return max(steady_iteration(loop, one.workload, one.pricing, SIMULATED).iteration_time / one.best for one in cases)


@pytest.mark.parametrize("seed", range(25))
def test_the_walk_over_thresholds_misses_none(seed):
    """Thresholds that differ only by rounding for several ranks of a host are included."""
    rng = random.Random(seed)
    cases = [case_of(rng, 3000) for _ in range(rng.randint(1, 3))]
    cycle = rng.choice(CYCLES)
    total = max(case.workload.gradient_bytes for case in cases)
    search = horovod_search._Grid(cases, Limits())
    threshold, exhaustive = search.walk(cycle, total)
    values = [worst(cases, each, cycle) for each in range(0, total + 200, 256)]
    assert exhaustive
    assert worst(cases, threshold, cycle) == pytest.approx(min(values), rel=2e-9)


@pytest.mark.parametrize(
    ("seed", "walked"), [*((seed, horovod_search.WALKED) for seed in range(8)), (14, 2), (20, 2), (33, 2)]
)
def test_the_best_settings_are_no_worse_than_any_of_the_grid(seed, walked, monkeypatch):
    """The best settings hold up even if the walk skips many thresholds."""
    monkeypatch.setattr(horovod_search, "WALKED", walked)
    rng = random.Random(seed)
    cases = [case_of(rng, 4 * MIB, 12) for _ in range(rng.randint(1, 2))]
    found = best_settings(cases)
    assert found is not None
    assert found.value == worst(cases, found.loop.threshold, found.loop.cycle)
    thresholds = [0, *(1 << k for k in range(18, 28)), DEFAULT_THRESHOLD]
    grid = [worst(cases, threshold, cycle) for threshold in thresholds for cycle in CYCLES]
    assert found.value <= min(grid) * (1 + 2e-9)


def test_limits_are_kept_or_nothing_is_found():
    case = case_of(random.Random(1), 3000)
    sizes = case.workload.gradients.sizes
    few = best_settings([case], Limits(max_buckets=2))
    if few is not None:
        assert len(steady_iteration(few.loop, case.workload, case.pricing, SIMULATED).batches) <= 2
    small = best_settings([case], Limits(max_bucket_bytes=max(sizes)))
    assert small is not None
    batches = steady_iteration(small.loop, case.workload, case.pricing, SIMULATED).batches
    assert all(sum(sizes[i] for i in batch) <= max(sizes) for batch in batches)
    assert best_settings([case], Limits(max_bucket_bytes=max(sizes) - 1)) is None


def test_the_worst_of_several_cases_decides():
    """In step, the second of two tensors of 1 MiB waits with a cycle of 20 ms; ahead, both are there at once."""
    rng = random.Random(4)
    in_step = case_of(rng, MIB)
    ahead = replace(in_step, workload=in_step.workload.ahead(10))
    found = best_settings([in_step, ahead])
    assert found is not None
    values = [worst([case], found.loop.threshold, found.loop.cycle) for case in (in_step, ahead)]
    assert found.value == max(values)


@pytest.mark.parametrize(
    ("low", "above", "rounded"),
    [
        (MIB - 100, MIB + 1, MIB),
        (MIB + 1, 3 * MIB, 2 * MIB),
        (MIB - 100, MIB, MIB - 100),
        (1500, 5000, 2048),
        (1500, 2048, 1500),
        (2048, 2049, 2048),
    ],
)
def test_thresholds_are_rounded_up_as_far_as_they_do_the_same(low, above, rounded):
    assert horovod_search._round(low, above) == rounded
