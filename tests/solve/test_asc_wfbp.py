"""ASC-WFBP's grouping on cases worked by hand, and two all-reduces at once as published."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.recursion import communication_finish
from osfmodel.entities.plan import Objective, contiguous_plan
from osfmodel.solve import SOLVERS, Question
from osfmodel.solve.published import asc_wfbp
from tests.conftest import gradients, workload_of

A, B = 3.0, 0.5
PRICING = Pricing({"all_reduce": AffineCost(((A, B),))}, gain=asc_wfbp.PUBLISHED_GAIN)
TWO = Objective(2)


def ends_of(ready, sizes, dtypes=None, startup=A, per_byte=B):
    return asc_wfbp.merge_queued(gradients(ready, sizes, dtypes), startup, per_byte)


def two_at_once(ready, sizes):
    """Time at which the last of these has arrived, each its own message."""
    workload = workload_of(ready, sizes)
    plan = contiguous_plan(workload, range(1, len(sizes) + 1)).under(TWO)
    return predict_timeline(workload, plan, PRICING).iteration_time


def test_two_equal_messages_together_take_one_and_a_half_times_the_bytes():
    assert PRICING.together(2) == pytest.approx(4 / 3)
    assert two_at_once([1, 1], [10, 10]) == pytest.approx(1 + A + 1.5 * B * 10)
    assert two_at_once([1], [10]) == pytest.approx(1 + A + B * 10)
    assert two_at_once([1, 21], [10, 10]) == pytest.approx(21 + A + B * 10)


def test_start_ups_pass_together_and_a_third_waits_for_a_channel():
    # At 1 + 3 two start to send. The short one leaves after 1 x 1.5 s, when 1 s of the 5 of the other is done.
    assert two_at_once([1, 1], [10, 2]) == pytest.approx(1 + A + 1.5 + 4)
    # The third starts up meanwhile, from 5.5 to 8.5: 3 s of the first's 4 pass alone, and the last one shared with it.
    assert two_at_once([1, 1, 1], [10, 2, 2]) == pytest.approx(10)


def test_queued_tensors_and_no_others_are_merged():
    # The first sends from 0 to 8. What is ready before then waits, and is merged; what is ready at 8 is not.
    assert ends_of([0, 4, 7, 8, 20], [10, 2, 2, 2, 2]) == (1, 3, 4, 5)
    assert ends_of([0, 8, 9], [10, 2, 2]) == (1, 2, 3)
    # MG-WFBP would also merge the first two: the second is ready less than a start-up after the first.
    assert ends_of([0, 2], [10, 2]) == (1, 2)
    assert ends_of([0, 4, 7], [10, 2, 2], ["a", "b", "a"]) == (1, 2, 3)
    assert ends_of([], []) == ()


def test_the_channels_are_those_of_the_objective():
    workload = workload_of([1, 2, 3], [10, 10, 10])
    times = [asc_wfbp.solve(Question(workload, PRICING, Objective(k))).timeline.iteration_time for k in (1, 2)]
    assert times[1] < times[0]
    assert (
        asc_wfbp.solve(Question(workload, PRICING, SOLVERS["asc-wfbp"].objective)).plan.channels
        == asc_wfbp.CHANNELS
        == 2
    )


messages = st.lists(st.tuples(st.floats(0, 50), st.integers(1, 100)), min_size=1, max_size=12)


@given(messages, st.floats(0, 10), st.floats(0.01, 2))
def test_merging_queued_tensors_never_delays_one_channel(found, startup, per_byte):
    ready = sorted(time for time, _ in found)
    sizes = [size for _, size in found]
    ends = ends_of(ready, sizes, None, startup, per_byte)
    assert ends[-1] == len(sizes)
    assert list(ends) == sorted(set(ends))
    merged = [sum(sizes[start:end]) for start, end in zip((0, *ends), ends, strict=False)]
    durations = [startup + per_byte * size for size in merged]
    single = communication_finish(ready, [startup + per_byte * size for size in sizes])
    assert communication_finish([ready[end - 1] for end in ends], durations) <= single + 1e-6


@given(messages)
def test_two_channels_lie_between_the_bounds(found):
    ready = sorted(1 + time for time, _ in found)
    sizes = [size for _, size in found]
    time = two_at_once(ready, sizes)
    one = communication_finish(ready, [A + B * size for size in sizes])
    alone = max(at + A + B * size for at, size in zip(ready, sizes, strict=True))
    assert max(alone, ready[0] + A + B * sum(sizes) / PRICING.together(2)) - 1e-6 <= time <= one * 1.5 + 1e-6
