"""OSF's model as reconstructed: its fusion against an event loop written apart from it, its limits, its place among
the engines. Exact arithmetic, equality without tolerance."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osfmodel import (
    ENGINES,
    Cluster,
    DataError,
    Effects,
    Layer,
    Link,
    PlanError,
    UsageError,
    Workload,
    load_cluster,
    load_workload,
    predict,
)
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import osf_model, predict_timeline
from osfmodel.engine.osf_model import ADAPTIVE_PLAN, CONSTANT_PLAN, Fusion, fused, idle_flush, rule_of
from osfmodel.entities.plan import in_one, one_by_one
from osfmodel.solve.exact import optimal
from tests.draws import examples
from tests.problems import asked

HUGE = 10**12
times = st.fractions(0, 5, max_denominator=4)


@st.composite
def workloads(draw):
    rows = draw(
        st.lists(
            st.tuples(times, times, st.integers(0, 20), st.sampled_from(["float32"] * 3 + ["bfloat16"])),
            min_size=1,
            max_size=8,
        )
    )
    layers = tuple(Layer(f"l{i}", f, b, size, dtype) for i, (f, b, size, dtype) in enumerate(rows))
    return Workload("w", layers, update_time=draw(st.fractions(Fraction(1, 10), 2)))


costs = st.builds(lambda a, b: AffineCost(((a, b),)), times, st.fractions(0, 1, max_denominator=8))
fusions = st.builds(
    Fusion,
    st.one_of(st.integers(0, 40), st.just(HUGE)),
    st.one_of(st.none(), st.fractions(0, 3, max_denominator=3)),
    st.one_of(st.just(Fraction(0)), times),
)


# ------------------------------------------------------------------------------------- the event loop, as an oracle


def arrivals(workload):
    """(when, size, dtype, name), in order."""
    clock, found = sum(layer.forward_time for layer in workload.layers), []
    for layer in reversed(workload.layers):
        clock += layer.backward_time
        if layer.gradient_bytes:
            found.append((clock, layer.gradient_bytes, layer.dtype, layer.name))
    return clock, found


def constant(workload, fusion, line):
    """Events one after the other: a gradient enters the buffer of its type, or a buffer's tick comes."""
    computed, coming = arrivals(workload)
    coming, buffers, deadlines, closed = list(coming), {}, {}, []

    def close(dtype, now):
        closed.append((now, buffers.pop(dtype)))
        deadlines.pop(dtype, None)

    while coming or deadlines:
        dtype, deadline = min(deadlines.items(), key=lambda pair: pair[1], default=(None, None))
        if not coming or (deadline is not None and deadline < coming[0][0]):
            close(dtype, deadline)
            continue
        now, size, dtype, name = coming.pop(0)
        if dtype in buffers and sum(held for held, _ in buffers[dtype]) + size > fusion.buffer:
            close(dtype, now)
        if dtype not in buffers:
            buffers[dtype] = []
            if fusion.cycle is not None:
                tick = Fraction(0) if fusion.cycle else now
                while tick < now:
                    tick += fusion.cycle
                deadlines[dtype] = tick
        buffers[dtype].append((size, name))
        last = fusion.cycle is None and all(other[2] != dtype for other in coming)
        if last or sum(held for held, _ in buffers[dtype]) >= fusion.buffer:
            close(dtype, now)
    ready = {name: now for now, _, _, name in arrivals(workload)[1]}
    order = [name for _, _, _, name in arrivals(workload)[1]]
    closed.sort(key=lambda pair: (pair[0], order.index(pair[1][0][1])))
    free, sent = Fraction(0), []
    for now, batch in closed:
        assert all(ready[name] <= now for _, name in batch)
        start = max(free, now + fusion.negotiation)
        free = start + line[0] + line[1] * sum(size for size, _ in batch)
        sent.append((tuple(name for _, name in batch), start, free))
    return sent, max(computed, free) + workload.update_time


def flushing(workload, line, negotiation):
    """Instant by instant: at each at which a gradient comes or the channel falls idle, an idle channel takes all."""
    computed, coming = arrivals(workload)
    here, sent, free = [], [], Fraction(0)
    instants = {now for now, *_ in coming}
    while instants:
        now = min(instants)
        instants.discard(now)
        here += [one for one in coming if one[0] == now]
        coming = [one for one in coming if one[0] > now]
        if here and free <= now:
            taken = [one for one in here if one[2] == here[0][2]]
            here = [one for one in here if one not in taken]
            free = now + negotiation + line[0] + line[1] * sum(size for _, size, _, _ in taken)
            sent.append((tuple(name for *_, name in taken), now + negotiation, free))
        if here:
            instants.add(max(free, now))
    return sent, max(computed, free) + workload.update_time


def as_carried_out(workload, plan, cost):
    timeline = osf_model.predict_timeline(workload, plan, Pricing.of(cost))
    return [(span.layers, span.start, span.end) for span in timeline.communication], timeline.iteration_time


def constant_agrees(workload, fusion, cost):
    plan = fused(workload, fusion)
    plan.require_valid(workload)
    return as_carried_out(workload, plan, cost) == constant(workload, fusion, cost.pieces[0])


def adaptive_agrees(workload, cost, negotiation, rule=idle_flush):
    plan = rule(workload, cost, negotiation)
    plan.require_valid(workload)
    return as_carried_out(workload, plan, cost) == flushing(workload, cost.pieces[0], negotiation)


@settings(max_examples=examples(30))
@given(workloads(), fusions, costs)
def test_a_constant_buffer_is_what_the_event_loop_does(workload, fusion, cost):
    assert constant_agrees(workload, fusion, cost)


@settings(max_examples=examples(30))
@given(workloads(), costs, st.one_of(st.just(Fraction(0)), times))
def test_idle_flush_is_what_the_event_loop_does(workload, cost, negotiation):
    assert adaptive_agrees(workload, cost, negotiation)


FIVE = Workload("w", tuple(Layer(f"l{i}", Fraction(1), Fraction(1), 4 + i) for i in range(5)))
LINE = AffineCost(((Fraction(1), Fraction(1, 4)),))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda fusion, ready: ready + fusion.cycle,  # a timer from the first tensor on, not a clock
        lambda fusion, ready: (ready // fusion.cycle + 1) * fusion.cycle,  # a tick at the very instant is missed
    ],
)
def test_the_oracle_of_constant_buffers_can_fail(wrong, monkeypatch):
    fusion = Fusion(30, Fraction(3, 2))
    assert constant_agrees(FIVE, fusion, LINE)
    monkeypatch.setattr(Fusion, "tick", wrong)
    assert not constant_agrees(FIVE, fusion, LINE)


def test_the_oracle_of_idle_flush_can_fail():
    assert adaptive_agrees(FIVE, LINE, Fraction(0))
    cheaper = AffineCost(((Fraction(1, 2), Fraction(1, 4)),))
    assert not adaptive_agrees(FIVE, LINE, Fraction(0), lambda workload, cost, wait: idle_flush(workload, cheaper))


# -------------------------------------------------------------------------------------------------------------- limits


@settings(max_examples=examples(15))
@given(workloads(), costs)
def test_an_endless_buffer_without_a_clock_is_one_message(workload, cost):
    plans = fused(workload, Fusion(HUGE)), in_one(workload)
    (found, time), (single, single_time) = (as_carried_out(workload, plan, cost) for plan in plans)
    assert {layers for layers, _, _ in found} == {layers for layers, _, _ in single}
    if len(set(workload.gradients.ready_times)) == len(workload.gradients):
        assert (found, time) == (single, single_time)  # which of two types goes first that are complete at once is open


@settings(max_examples=examples(15))
@given(workloads(), costs, st.one_of(st.none(), times))
def test_a_buffer_of_nothing_sends_every_tensor_at_once(workload, cost, cycle):
    plan = fused(workload, Fusion(0, cycle))
    assert as_carried_out(workload, plan, cost) == as_carried_out(workload, one_by_one(workload), cost)


@settings(max_examples=examples(15))
@given(workloads(), costs)
def test_idle_flush_never_sends_while_busy_and_never_idles_while_something_waits(workload, cost):
    plan = idle_flush(workload, cost)
    spans = osf_model.predict_timeline(workload, plan, Pricing.of(cost)).communication
    ready = dict(zip(workload.gradients.names, workload.gradients.ready_times, strict=True))
    for before, after in pairwise(spans):
        assert after.start >= before.end
    ends = [Fraction(0), *(span.end for span in spans)]
    for end, span in zip(ends, spans, strict=False):
        left = [ready[layer] for later in spans if later.start >= span.start for layer in later.layers]
        assert span.start == max(end, min(left))


@settings(max_examples=examples(15))
@given(workloads(), costs, fusions)
def test_neither_rule_beats_the_exact_plan(workload, cost, fusion):
    """With one type, for which that is the optimum of all plans in ready order."""
    layers = [Layer(one.name, one.forward_time, one.backward_time, one.gradient_bytes) for one in workload.layers]
    alike = Workload("w", tuple(layers), update_time=workload.update_time)
    solution = optimal.solve(asked(alike, cost))
    best = predict_timeline(alike, solution.require()[0], Pricing.of(cost)).iteration_time
    for plan in (fused(alike, fusion), idle_flush(alike, cost)):
        assert best <= as_carried_out(alike, plan, cost)[1]


def test_a_batch_waits_for_its_tick_and_one_in_floating_point_is_not_early():
    workload = Workload("w", (Layer("a", 0.0, 0.3, 8), Layer("b", 1.0, 0.1, 8)))
    (bucket,) = fused(workload, Fusion(64, 0.5)).buckets
    assert bucket.release_time == 1.5
    for count in range(1, 200):
        ready = count * 0.1
        assert ready <= Fusion(64, 0.1).tick(ready) < ready + 0.1 + 1e-9


# ------------------------------------------------------------------------------------------------- among the engines


def test_it_agrees_with_ours_where_ours_adds_nothing(small_workload, small_cluster):
    for plan in ("wfbp", "single", "ddp", "horovod", "optimal", "osf:150B,1s", "osf:300B,2s,100ms", ADAPTIVE_PLAN):
        ours, theirs = (predict(small_workload, small_cluster, plan, 4, engine) for engine in ("auto", "osf"))
        assert ours.plan == theirs.plan
        assert ours.timeline.spans == theirs.timeline.spans
        assert (ours.engine, theirs.engine) == ("recursion", "osf")
        assert ours.lower_bound == theirs.lower_bound
        assert theirs.band is None
        assert theirs.caveats[-1] == osf_model.CAVEAT
        assert osf_model.CAVEAT not in ours.caveats


def test_the_scaling_factor_is_a_quotient_of_two_of_its_iterations(small_workload, small_cluster):
    alone, four = (predict(small_workload, small_cluster, "osf:300B", count, "osf") for count in (1, 4))
    assert four.timeline.scaling_factor == pytest.approx(alone.iteration_time / four.iteration_time)


def test_it_knows_no_effects_and_one_collective_in_flight():
    workload = load_workload("googlenet-k80")
    network = load_cluster("emulated-4x2500mbit")
    assert network.in_flight == 2
    assert predict(workload, network, "wfbp", 4).engine == "simulator"
    found = predict(workload, network, "wfbp", 4, engine="osf")
    spans = found.timeline.communication
    assert all(after.start >= before.end for before, after in pairwise(spans))
    slowed = Cluster("c", "ring", between_nodes=Link(1e-4, 1e-9), effects=Effects(compute_slowdown=0.5))
    plain = Cluster("c", "ring", between_nodes=Link(1e-4, 1e-9))
    assert predict(workload, slowed, "wfbp", 4).iteration_time > predict(workload, plain, "wfbp", 4).iteration_time
    times = [predict(workload, network, "wfbp", 4, engine="osf").iteration_time for network in (slowed, plain)]
    assert times[0] == times[1]


def test_plans_beyond_the_model_are_refused(small_workload, small_cluster):
    with pytest.raises(PlanError, match="the engine osf knows one channel"):
        predict(small_workload, small_cluster, "asc-wfbp", 4, engine="osf")
    with pytest.raises(UsageError, match=r"unknown engine 'ofs': did you mean osf\?"):
        predict(small_workload, small_cluster, "ddp", 4, engine="ofs")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("osf:", "is not a size"),
        ("osf:64", "has no unit"),
        ("osf:64MiB,5", "has no unit"),
        ("osf:64MiB,5ms,1ms,1ms", "write osf:BUFFER"),
        ("osf:adaptive,1ms,1ms", "write osf:BUFFER"),
        ("osf:adaptiv", "is not a size"),
    ],
)
def test_a_name_that_is_none_is_told(name, said):
    with pytest.raises(UsageError, match=said):
        rule_of(name)


def test_names_say_what_they_are(small_workload):
    assert rule_of("osf:300B,2s,1s")(small_workload, LINE) == fused(small_workload, Fusion(300, 2.0, 1.0))
    assert rule_of("osf:adaptive,1s")(small_workload, LINE) == idle_flush(small_workload, LINE, 1.0)
    assert {CONSTANT_PLAN, ADAPTIVE_PLAN} < set(ENGINES["osf"].plans)


@pytest.mark.parametrize("wrong", [{"buffer": -1}, {"buffer": 1, "cycle": -1.0}, {"buffer": 1, "negotiation": -1.0}])
def test_numbers_that_cannot_be_are_refused(wrong):
    with pytest.raises(DataError, match=r"the (fusion buffer|cycle time|negotiation time) is"):
        Fusion(**wrong)


def test_with_free_channel_and_negotiation_adaptive_needs_no_clock(small_workload):
    """A framework without a clock can run it; with negotiation a batch starts later than it could."""
    assert not any(bucket.release_time for bucket in idle_flush(small_workload, LINE).buckets)
    assert all(bucket.release_time for bucket in idle_flush(small_workload, LINE, 1.0).buckets)
