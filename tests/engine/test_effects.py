"""Effects: closed forms, and a simulation by events that knows nothing of the recursion's bookkeeping."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel import AlphaBeta, Cluster, Effects, Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine.recursion import predict_timeline
from osfmodel.entities.effects import EFFECTS, effects_of, expected_maximum
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.executors import effects_under
from osfmodel.entities.plan import contiguous_plan
from osfmodel.entities.rounding import within
from osfmodel.solve.under_effects import as_timed
from tests import kept
from tests.draws import examples

pytestmark = pytest.mark.usefixtures("ideal")


def simulate(workload, plan, cost, effects):
    """Finish of one iteration, advancing from event to event with an explicit rate of the compute stream."""
    last = {bucket.blocks[-1].layer for bucket in plan.buckets}
    work = [sum(layer.forward_time for layer in workload.layers)]
    names = [""]
    for layer in reversed(workload.layers):
        extra = effects.copy_in * layer.gradient_bytes + (effects.hook_time if layer.name in last else 0)
        work.append(layer.backward_time + extra)
        names.append(layer.name)
    now, position, left, done = Fraction(0), 0, work[0], set()
    waiting, busy_until = list(plan.buckets), None
    computed, sent, arrivals = Fraction(0), [], []
    while position < len(work) or waiting or busy_until is not None:
        while position < len(work) and left == 0:
            done.add(names[position])
            position += 1
            computed = now
            left = work[position] if position < len(work) else Fraction(0)
        if busy_until is not None and busy_until <= now:
            arrivals.append(now)
            busy_until = None
        if busy_until is None and waiting and {block.layer for block in waiting[0].blocks} <= done:
            bucket = waiting.pop(0)
            sent.append(bucket.size)
            fused = effects.fusion_copy * bucket.size if len(bucket.blocks) > 1 else 0
            busy_until = now + cost(bucket.size) + effects.launch_latency + fused
            continue
        rate = 1 if busy_until is None else 1 / (1 + effects.compute_slowdown)
        steps = [left / rate] if position < len(work) else []
        steps += [busy_until - now] if busy_until is not None else []
        if not steps:
            break
        step = min(steps)
        if position < len(work):
            left -= step * rate
        now += step
    finish = computed
    for arrival, size in zip(arrivals, sent, strict=True):  # copied back in order, each once it is there
        finish = max(finish, arrival) + effects.copy_out * size
    return finish + workload.update_time


small = st.integers(0, 6).map(Fraction)
DRAWN = ("launch_latency", "hook_time", "copy_in", "copy_out", "fusion_copy", "compute_slowdown")


@st.composite
def cases(draw):
    count = draw(st.integers(1, 6))
    layers = tuple(
        Layer(f"l{i}", draw(small), draw(small) + Fraction(1, 3), draw(st.integers(1, 9))) for i in range(count)
    )
    workload = Workload("w", layers, update_time=draw(small))
    ends = sorted(draw(st.sets(st.integers(1, count))) | {count})
    cost = AffineCost(((draw(small), draw(small) / 4),))
    values = {name: draw(small) / draw(st.sampled_from([1, 4, 7])) for name in DRAWN}
    return workload, contiguous_plan(workload, ends), cost, Effects(**values)


@given(cases())
@settings(max_examples=examples(30))
def test_equals_a_simulation_by_events(case):
    workload, plan, cost, effects = case
    assert predict_timeline(workload, plan, cost, effects).iteration_time == simulate(workload, plan, cost, effects)


@given(cases())
@settings(max_examples=examples(30))
def test_spans_are_consistent(case):
    """Compute spans follow each other, no collective starts before its gradients' spans have ended."""
    workload, plan, cost, effects = case
    timeline = predict_timeline(workload, plan, cost, effects)
    compute = [span for span in timeline.spans if span.stream == "compute" and span.kind != "copy"]
    ends = {span.layers[0]: span.end for span in compute if span.kind == "backward"}
    assert all(a.end <= b.start for a, b in itertools.pairwise(compute))
    assert all(span.start >= max(ends[layer] for layer in span.layers) for span in timeline.communication)


def test_the_oracle_can_fail():
    workload = Workload("w", (Layer("a", Fraction(1), Fraction(4), 8), Layer("b", Fraction(1), Fraction(4), 8)))
    plan, cost = contiguous_plan(workload, [1, 2]), AffineCost(((Fraction(2), Fraction(0)),))
    slow = Effects(compute_slowdown=Fraction(1, 2))
    # The collective of b runs from 6 to 8; computation does 4/3 of work in it, and ends at 8 + (4 - 4/3).
    expected = Fraction(8) + 4 - Fraction(4, 3) + 2
    assert (
        predict_timeline(workload, plan, cost, slow).iteration_time == expected == simulate(workload, plan, cost, slow)
    )
    assert simulate(workload, plan, cost, Effects()) != expected


def test_each_effect_adds_its_term(small_workload):
    """One bucket after backward hides nothing, so each term shows in full."""
    cost, plan = AffineCost(((0.25, 0.0),)), contiguous_plan(small_workload, [3])
    plain = predict_timeline(small_workload, plan, cost).iteration_time
    total = small_workload.gradient_bytes

    def added(workers=1, **values):
        return predict_timeline(small_workload, plan, cost, Effects(**values), workers).iteration_time - plain

    assert added(launch_latency=0.5) == pytest.approx(0.5)
    assert added(hook_time=0.5) == pytest.approx(0.5)
    assert added(copy_in=0.01) == pytest.approx(0.01 * total)
    assert added(copy_out=0.01) == pytest.approx(0.01 * total)
    assert added(fusion_copy=0.01) == pytest.approx(0.01 * total)
    assert added(compute_slowdown=3.0) == 0
    assert added(straggler_deviation=0.1) == 0
    computing = small_workload.forward_time + small_workload.backward_time
    assert added(workers=2, straggler_deviation=0.1) == pytest.approx(0.1 / 3.141592653589793**0.5 * computing)


def test_expected_maximum_of_normal_variables():
    """Known values (order statistics of the standard normal), and growth like sqrt(2 ln N)."""
    known = {1: 0.0, 2: 0.5641895835, 3: 0.8462843753, 4: 1.0293753730, 5: 1.1629644736, 10: 1.5387527308}
    for workers, value in known.items():
        assert expected_maximum(workers) == pytest.approx(value, abs=1e-9)
    assert expected_maximum(100) == pytest.approx(2.50759, abs=1e-4)


def test_effects_by_name_and_their_evidence():
    assert effects_of({"compute-slowdown": None}) == Effects(compute_slowdown=0.189)
    assert effects_of({}) == Effects()
    assert set(EFFECTS) == set(Effects.__slots__)
    assert all(effect.evidence and effect.unit for effect in EFFECTS.values())
    with pytest.raises(UsageError, match="no published value"):
        effects_of({"hook_time": None})
    with pytest.raises(UsageError, match="unknown effect"):
        effects_of({"gravity": 9.81})
    with pytest.raises(DataError, match="hook_time"):
        Effects(hook_time=-1)


def test_a_cluster_carries_its_effects_into_predict_and_tune(small_workload, tmp_path):
    plain = Cluster("c", "hockney", fits=(AlphaBeta(4, 1.0, 0.01),))
    cluster = replace(plain, effects=Effects(launch_latency=0.5, compute_slowdown=0.2))
    osf.save(cluster, tmp_path / "c.json")
    cluster = osf.load_cluster(tmp_path / "c.json")
    slow, fast = (osf.predict(small_workload, one, "wfbp", 4) for one in (cluster, plain))
    assert slow.iteration_time > fast.iteration_time
    assert "compute_slowdown 20%" in slow.notes[-1]
    assert osf.predict(small_workload, replace(cluster, effects=Effects()), "wfbp", 4).timeline == fast.timeline
    # A launch latency on every message is in the optimum: it fuses more.
    launched = osf.predict(small_workload, replace(plain, effects=Effects(launch_latency=100.0)), "optimal", 4)
    assert len(launched.plan.buckets) == 1 < len(osf.predict(small_workload, plain, "wfbp", 4).plan.buckets)
    tuned = osf.tune(small_workload, cluster, 4)
    assert tuned.outcomes[0].tuned_time == osf.predict(small_workload, cluster, tuned.plan, 4).iteration_time


@pytest.mark.parametrize(
    "effects",
    [
        Effects(straggler_deviation=0.1),
        Effects(straggler_deviation=0.03),
        Effects(compute_slowdown=0.4),
        Effects(hook_time=5e-3),
        Effects(copy_in=2e-10, copy_out=1e-10),
        Effects(launch_latency=2e-3),
    ],
    ids=lambda effects: ", ".join(effects.active),
)
def test_plans_are_made_with_the_effects_in_view(effects):
    """Tuned with effects is no slower than tuned without them, both timed with them; and no slower than the default."""
    workload, plain = osf.load_workload("alexnet-pipedream"), osf.load_cluster("v100-10gbe")
    cluster = replace(plain, effects=effects)
    aware = osf.tune(workload, cluster, 64)
    blind = osf.predict(
        workload, cluster, kept.tuned("alexnet-pipedream", "v100-10gbe", 64, "ddp").plan, 64
    ).iteration_time
    ours = aware.outcomes[0]
    assert ours.tuned_time <= blind * 1.001
    assert ours.tuned_time <= ours.default_time * 1.001
    optimal = osf.predict(workload, cluster, "optimal", 64).iteration_time
    assert optimal <= within(osf.predict(workload, cluster, "ddp", 64).iteration_time)
    assert ours.lower_bound <= within(optimal)


def test_effects_move_the_times_of_the_device_and_not_those_of_the_host():
    workload = Workload("host", (Layer("a", 1, 2, 4, enqueue_time=3.0), Layer("b", 1, 2, 4)), update_time=1)
    timeline = predict_timeline(
        workload, contiguous_plan(workload, [1, 2]), AffineCost(((0, 0),)), Effects(copy_in=0.5)
    )
    seen = as_timed(workload, timeline)
    assert [layer.backward_time for layer in seen.layers] == [4, 4]
    assert [layer.enqueue_time for layer in seen.layers] == [3.0, None]
    assert seen.gradients.enqueue_times == (seen.gradients.ready_times[0], 3.0)


def test_what_the_executor_carries_out_has_effects_of_its_own():
    """The executor scales each gradient into its bucket; DDP's options and hooks do not apply to it."""
    every = Effects(launch_latency=1, hook_time=2, copy_in=3, copy_out=4, compute_slowdown=5)
    run = {"executor": "runtime", "gradient_as_bucket_view": "True"}
    assert effects_under(every, run) == Effects(launch_latency=1, copy_in=3, compute_slowdown=5)
    assert effects_under(every, {**run, "what": "a replay", "device": "CPU"}) == Effects(launch_latency=1)
    assert effects_under(every, {}) == every


def test_the_executor_has_as_many_in_flight_as_the_plan_has_channels():
    pricing = replace(Pricing.of(AffineCost(((1.0, 1.0),)), workers=2), in_flight=2)
    assert pricing.under({}).in_flight == 2
    assert pricing.under({"executor": "runtime"}).in_flight == 1


def test_the_fusion_buffer_and_negotiation_are_horovods():
    """If a run does not state its executor, they are charged as they are given."""
    effects = Effects(fusion_copy=1e-10, negotiation=1e-4, negotiation_miss=2e-4)
    assert effects_under(effects, {}) == effects_under(effects, {"executor": "horovod"}) == effects
    assert effects_under(effects, {"executor": "runtime"}) == effects_under(effects, {"executor": "ddp"}) == Effects()
