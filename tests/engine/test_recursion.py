"""The recursion against its own equations, in exact rational arithmetic."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import Effects, Layer, Plan, PlanError, Workload
from osfmodel.cost import AffineCost
from osfmodel.engine.recursion import predict_timeline
from osfmodel.entities.plan import Block, Bucket, contiguous_plan
from tests.draws import examples

times = st.fractions(0, 5, max_denominator=50)


@st.composite
def cases(draw):
    """A workload with rational times, a contiguous plan for it, and a rational cost."""
    rows = draw(st.lists(st.tuples(times, times, st.integers(0, 40)), min_size=1, max_size=8))
    layers = tuple(Layer(f"l{i}", f, b, size) for i, (f, b, size) in enumerate(rows))
    workload = Workload("w", layers, update_time=draw(st.fractions(Fraction(1, 10), 2)))
    count = len(workload.gradients)
    cuts = sorted(draw(st.sets(st.integers(1, max(count - 1, 1)), max_size=count))) if count > 1 else []
    ends = [*[cut for cut in cuts if cut < count], count] if count else []
    cost = AffineCost(((draw(times), draw(st.fractions(0, 1))),))
    return workload, contiguous_plan(workload, ends), cost


@settings(max_examples=examples(30))
@given(cases())
def test_equations_schedule_and_critical_path(case):
    """The three claims on one timeline: making a case and running it takes most of the time."""
    workload, plan, cost = case
    timeline = predict_timeline(workload, plan, cost)
    assert_equations_6_to_8(workload, plan, cost, timeline)
    assert_a_schedule(workload, plan, timeline)
    assert_critical_path(timeline)


def assert_equations_6_to_8(workload, plan, cost, timeline):
    """tau_c and t_iter as printed in MG-WFBP, computed from the layer table independently, equal with no tolerance."""
    clock = sum(layer.forward_time for layer in workload.layers)
    ready = {}
    for layer in reversed(workload.layers):
        clock += layer.backward_time
        ready[layer.name] = clock
    end = Fraction(0)
    for bucket in plan.buckets:
        start = max([end] + [ready[block.layer] for block in bucket.blocks])
        end = start + cost.pieces[0][0] + cost.pieces[0][1] * sum(block.bytes for block in bucket.blocks)
    assert timeline.iteration_time == max(clock, end) + workload.update_time
    assert isinstance(timeline.iteration_time, Fraction)


def assert_a_schedule(workload, plan, timeline):
    """No stream does two things at once, nothing starts before its gradients are ready, and all bytes are sent."""
    for stream in ("compute", "channel 0"):
        spans = [span for span in timeline.spans if span.stream == stream]
        assert all(before.end <= after.start for before, after in itertools.pairwise(spans))
    backward = {span.layers[0]: span.end for span in timeline.spans if span.kind == "backward"}
    for span in timeline.communication:
        assert span.start >= max(backward[layer] for layer in span.layers)
    assert sum(bucket.size for bucket in plan.buckets) == workload.gradient_bytes
    assert timeline.iteration_time == max(span.end for span in timeline.spans)
    assert timeline.exposed_communication >= 0
    assert 0 < timeline.scaling_factor <= 1


def assert_critical_path(timeline):
    """A chain without gaps from 0 to the end."""
    path = timeline.critical_path
    assert path[-1].end == timeline.iteration_time
    assert all(before.end == after.start for before, after in itertools.pairwise(path))
    assert path[0].start == 0


def test_naive_and_one_message_closed_forms():
    """Everything ready at the end: SyncEASGD, t_f + t_b + T(sum p) (Eq. 9)."""
    workload = Workload("w", (Layer("a", 1, 2, 30), Layer("b", 1, 3, 70)))
    timeline = predict_timeline(workload, contiguous_plan(workload, [2]), AffineCost(((5, Fraction(1, 10)),)))
    assert timeline.iteration_time == 2 + 5 + 5 + 10
    assert timeline.scaling_factor == Fraction(7, 22)


def test_a_tensor_may_be_cut():
    workload = Workload("w", (Layer("a", 0, 4, 100),))
    plan = Plan("w", (Bucket((Block("a", 0, 60),)), Bucket((Block("a", 60, 40),))))
    assert predict_timeline(workload, plan, AffineCost(((1, Fraction(1, 10)),))).iteration_time == 4 + 2 + 10


def test_release_time_holds_a_bucket_back():
    workload = Workload("w", (Layer("a", 0, 4, 100),))
    plan = Plan("w", (Bucket((Block("a", 0, 100),), release_time=7),))
    timeline = predict_timeline(workload, plan, AffineCost(((1, 0),)))
    assert timeline.iteration_time == 8
    assert [span.kind for span in timeline.critical_path] == ["all_reduce"]


def test_computation_that_nothing_slows_is_the_same_for_all_plans():
    """Its spans are those that effects too small to be seen in a float leave."""
    workload = Workload("three", tuple(Layer(f"l{i}", 0.1 * i + 0.1, 0.7 / (i + 1), 10 * i) for i in range(3)), 32, 0.5)
    plan, cost = contiguous_plan(workload, [1, 2]), AffineCost(((0.3, 0.01),))
    timeline = predict_timeline(workload, plan, cost)
    assert timeline.spans[: len(workload.computation)] == workload.computation
    slowed = predict_timeline(workload, plan, cost, Effects(compute_slowdown=1e-300))
    assert slowed.spans == timeline.spans


def test_update_comes_after_everything():
    workload = Workload("w", (Layer("a", 1, 1, 10),), update_time=3)
    timeline = predict_timeline(workload, contiguous_plan(workload, [1]), AffineCost(((2, 0),)))
    assert timeline.iteration_time == 1 + 1 + 2 + 3
    assert timeline.compute_time == 5
    assert timeline.exposed_communication == 2
    assert timeline.overlap_ratio == 0


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"channels": 2}, "2 channels"),
        ({"forward_overlap": True}, "forward to overlap"),
        ({"release": True}, "released"),
    ],
)
def test_what_the_engine_cannot_model_is_refused_by_name(setting, words):
    workload = Workload("w", (Layer("a", 1, 1, 10),))
    plan = Plan("w", contiguous_plan(workload, [1]).buckets, **setting)
    with pytest.raises(PlanError, match=words):
        predict_timeline(workload, plan, AffineCost(((2, 0),)))
