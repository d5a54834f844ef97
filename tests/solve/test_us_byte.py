"""US-Byte's three algorithms on cases worked by hand, against the engine, and on the trace that they were tried on."""

from __future__ import annotations

import numpy as np
import pytest

import osfmodel as osf
from osfmodel.cost import AffineCost
from osfmodel.cost.clusters import pricing_of
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective
from osfmodel.solve import Question
from osfmodel.solve.published import us_byte
from osfmodel.solve.published.us_byte import UsByteProblem
from tests.draws import examples
from tests.problems import random_problem

OVERLAP = Objective(forward_overlap=True)


def problem(ready, sizes, tails=None, startup=1.0, per_byte=1.0, base=1):
    """From the input on: so ready times fall."""
    names = tuple(f"t{i}" for i in range(len(sizes)))
    return UsByteProblem(names, tuple(ready), tuple(tails or [0] * len(sizes)), tuple(sizes), startup, per_byte, base)


def test_phase_one_sends_until_just_after_the_next_gradient():
    # Layer 1 is ready at 2. Until 5.5 there are 3.5 s: a start-up and 3 blocks of 1 s, which end at 6.
    phase = us_byte.first_phase(problem([5.5, 2.0], [4, 10]), [0, 1])
    assert (phase.sends, phase.starts, phase.now, phase.left) == ([(1, 3)], [2.0], 6.0, [4, 7])


def test_phase_one_sends_one_block_into_a_gap_shorter_than_a_start_up_and_all_into_a_long_one():
    short = us_byte.first_phase(problem([2.5, 2.0], [4, 10], base=2), [0, 1])
    assert (short.sends, short.now) == ([(1, 2)], 5.0)
    long = us_byte.first_phase(problem([20.0, 2.0], [4, 10]), [0, 1])
    assert (long.sends, long.now, long.left) == ([(1, 10)], 20.0, [4, 0])


def test_the_last_block_holds_the_remainder():
    phase = us_byte.first_phase(problem([20.0, 2.0], [4, 10], base=4), [0, 1])
    assert (phase.sends, phase.ends[1]) == ([(1, 10)], 13.0)


def test_consecutive_sends_of_a_layer_are_one():
    # Priority to layer 2: it sends until 4 is past (1 + 1), and goes on until 7.5 is past (1 + 5), without a start-up.
    phase = us_byte.first_phase(problem([7.5, 4.0, 2.0], [3, 3, 9]), [2, 1, 0])
    assert (phase.sends, phase.starts, phase.now, phase.left) == ([(2, 5)], [2.0], 8.0, [3, 3, 4])
    # Input first it is layer 1 that sends from 4 on.
    assert us_byte.first_phase(problem([7.5, 4.0, 2.0], [3, 3, 9]), [0, 1, 2]).sends == [(2, 1), (1, 3)]


def test_phase_two_sends_the_rest_of_each_layer_at_once_input_first():
    value, sends, _ = us_byte.evaluate(problem([5.5, 2.0], [4, 10], tails=[3.0, 1.0]), [0, 1])
    assert sends == [(1, 3), (0, 4), (1, 7)]
    # Layer 0 arrives at 6 + 5, layer 1 at 11 + 8.
    assert value == 20.0


def test_a_layer_takes_the_priority_of_another_and_moves_it_down():
    assert us_byte.promoted([0, 1, 2, 3], 3, 1) == [0, 2, 3, 1]
    assert us_byte.promoted([0, 1, 2, 3], 2, 2) == [0, 1, 2, 3]


def test_the_search_keeps_only_what_helps():
    # Input first, layer 2 sends 1 block until 4, layer 1 takes over, and the rest of layer 2 pays a start-up later.
    # Sent whole it would end at 6, after layer 1 is ready and not after layer 0: tried at the priority of layer 1.
    asked = problem([6.0, 4.0, 2.0], [1, 1, 3], tails=[0.0, 0.0, 0.0])
    plain, _, _ = us_byte.evaluate(asked, [0, 1, 2])
    assert plain == 11.0
    assert us_byte.search(asked) == (10.0, [(2, 3), (0, 1), (1, 1)])
    assert us_byte.evaluate(asked, us_byte.promoted([0, 1, 2], 2, 1))[0] == 10.0
    # Where layer 1 has the longest forward after it, that is worse, and the order stays.
    assert us_byte.search(problem([6.0, 4.0, 2.0], [1, 1, 3], tails=[9.0, 9.0, 0.0]))[1][:2] == [(2, 1), (1, 1)]


def test_the_planners_time_is_the_engines():
    """Layers without parameters, an update, and base blocks larger than tensors are included."""
    rng = np.random.default_rng(31)
    for _ in range(examples(25)):
        found = random_problem(rng)
        steps = rng.exponential(1.0, (2, len(found))).tolist()
        rows = zip(*steps, found.sizes, strict=True)
        layers = [osf.Layer(f"t{i}", *times, size) for i, (*times, size) in enumerate(rows)]
        workload = osf.Workload("random", tuple(layers), update_time=float(rng.choice([0.0, 0.5])))
        startup, per_byte = float(rng.exponential(0.5)), float(rng.exponential(0.05)) + 1e-3
        pricing = Pricing.of(AffineCost(((startup, per_byte),)))
        base = int(rng.choice([1, 4, 50, 1000]))
        plan = us_byte.plan(workload, pricing, base)
        plan.require_valid(workload)
        asked = us_byte.problem_of(workload, startup, per_byte, base)
        sizes = [bucket.size for bucket in plan.buckets]
        assert sum(sizes) == workload.gradient_bytes
        value = predict_timeline(workload, plan, pricing).iteration_time
        best, sends = us_byte.search(asked)
        assert [size for _, size in sends] == sizes
        assert best <= us_byte.evaluate(asked, range(len(asked.sizes)))[0]
        if sizes:
            assert value == pytest.approx(max(best, workload.compute_time), rel=1e-9)


@pytest.mark.parametrize(("workers", "found"), [(8, 1.00), (16, 1.01), (32, 1.34), (64, 1.92)])
def test_on_the_googlenet_trace_it_is_as_far_from_the_bound_as_was_found(workers, found):
    """Value / bound in docs/reference/published.md, the best of four base partitions; another implementation agreed."""
    pricing = pricing_of(osf.load_cluster("k80-10gbe-ring"), workers)
    solution = us_byte.solve(Question(osf.load_workload("googlenet-k80"), pricing, OVERLAP))
    assert solution.gap + 1 == pytest.approx(found, abs=0.01)


def test_free_bytes_and_a_start_up_of_zero():
    workload = osf.load_workload("googlenet-k80")
    for line in ((1e-3, 0.0), (0.0, 1e-9), (0.0, 0.0)):
        solution = us_byte.solve(Question(workload, Pricing.of(AffineCost((line,))), OVERLAP))
        solution.plan.require_valid(workload)
        assert solution.gap >= -1e-9
