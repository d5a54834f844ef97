"""Explanations of made-up traces: the planted cause is named, and costs what the job is faster by without it."""

from __future__ import annotations

from dataclasses import astuple, replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel.diagnosis import CAUSES
from osfmodel.diagnosis.explain_trace import WORTH, explain_trace
from osfmodel.diagnosis.scene import SeenStep
from osfmodel.diagnosis.sentences import find_unused
from osfmodel.diagnosis.waits import LocalClock, parts_of, sent, waits
from osfmodel.entities.display import show_time
from osfmodel.entities.errors import DataError
from osfmodel.entities.timeline import union, without
from osfmodel.entities.trace import Collective, GradientReady, RankTrace, Step, Trace
from osfmodel.formats.traces import cluster_of, measurement_of, workload_of
from osfmodel.formats.traces.cautions import cautions, own_step
from osfmodel.formats.traces.network import wire_times
from osfmodel.planning.remedies import BEYOND
from osfmodel.show.explained.table import costs, others, whose_messages
from tests.draws import examples
from tests.jobs import BACKWARDS, BESIDE, EACH, GIANT, HEALTHY, MILLI, PLANTED, TINY, UNEVEN, Job, trace_of
from tests.sharded_jobs import REMOVED_SHARDED


def total(parts):
    """Seconds in all parts together."""
    return sum(value or 0 for value in astuple(parts))


def step_time(job: Job) -> float:
    """Seconds of a step once ranks have fallen into step."""
    return trace_of(job).ranks[0].steps[-1].time


REMOVED = {
    "imbalance": replace(HEALTHY, slowness=(1.0, 1.0)),
    "latency": replace(TINY, latency=0.0),
    "late-bucket": HEALTHY,
    "input": HEALTHY,
    "shared-network": replace(BESIDE, own_network=True),
    "find-unused": replace(HEALTHY, used_map=False),
    "negotiation": HEALTHY,
    "host": HEALTHY,
    "every-micro-batch": replace(EACH, each=False),
    "uneven-exchange": replace(UNEVEN, exchanges=((24_000_000,) * 4,) * 3),
    **REMOVED_SHARDED,
}


def test_what_every_cause_costs_is_held_against_a_job_without_it():
    """Bandwidth, of which only a part counts, has its own test below."""
    assert set(REMOVED) == set(CAUSES) - {"bandwidth"}, "add the job of PLANTED without its fault to REMOVED"


@pytest.mark.parametrize("cause", REMOVED)
def test_a_cause_costs_what_the_job_is_faster_by_without_it(cause):
    """The oracle is the made-up job itself, run without the fault."""
    job, mended = PLANTED[cause], REMOVED[cause]
    found = explain_trace(trace_of(job))
    saved = step_time(job) - step_time(mended)
    # One start-up remains of a giant bucket, several of its parts; a start-up fitted is a little off.
    assert found.gains[cause] == pytest.approx(saved, rel=0.02, abs=0.15 * MILLI)
    assert found.gains[cause] > WORTH * found.step_time
    assert found.gains["bandwidth" if cause != "find-unused" else "input"] != pytest.approx(saved, rel=0.02)


def test_an_exchange_that_is_uneven_is_found_though_all_ranks_end_it_together():
    """A hot rank may hold up those that send to it. What each gets is on the record, and tells what is uneven."""
    trace = trace_of(replace(UNEVEN, exchanges=((84_000_000,) * 4,) * 3))
    loads = (4_000_000, 4_000_000, 84_000_000, 4_000_000)

    def told(rank: RankTrace, received: int) -> RankTrace:
        steps = []
        for step in rank.steps:
            known = tuple(
                replace(one, elements=24_000_000, received=received) if one.kind == "all_to_all" else one
                for one in step.collectives
            )
            steps.append(replace(step, collectives=known))
        return replace(rank, steps=tuple(steps))

    ranks = tuple(told(rank, load) for rank, load in zip(trace.ranks, loads, strict=True))
    assert explain_trace(trace).gains["uneven-exchange"] == 0
    found = explain_trace(replace(trace, ranks=ranks))
    even = 84.1 * 24 / 84  # milliseconds: the mean load over the largest, start-up included
    assert found.gains["uneven-exchange"] == pytest.approx(3 * (84.1 - even) * MILLI)


def test_an_all_gather_that_overtakes_a_reduce_scatter_shares_the_network_with_it():
    """It could have gone 10 ms before backward needs it, in twice its own 5 ms; it was needed 19 ms before it came."""
    job = replace(PLANTED["one-communicator"], backward=(1, 30, 4, 10, 40), gathers=(0.1, 0.1, 5, 0.1, 0.1))
    found = explain_trace(trace_of(job))
    assert found.gains["one-communicator"] == pytest.approx(19 * MILLI, abs=0.3 * MILLI)
    slower = explain_trace(trace_of(replace(job, gathers=(0.1, 0.1, 8, 0.1, 0.1))))
    assert slower.gains["one-communicator"] == pytest.approx((22 - 6) * MILLI, abs=0.3 * MILLI)


def test_of_bandwidth_only_what_no_plan_hides_is_counted():
    """All bytes but those of backward's time are exposed, whatever the buckets."""
    for buckets in (HEALTHY.buckets, GIANT.buckets):
        job = replace(HEALTHY, per_byte=1e-8, latency=0.0, buckets=buckets)
        found = explain_trace(trace_of(job))
        sent = sum(job.gradients) * job.per_byte
        assert found.gains["bandwidth"] == pytest.approx(sent - 9 * job.backward, rel=0.01)


JOBS = st.builds(
    Job,
    gradients=st.just((4_000_000, 1_000_000, 8_000_000, 2_000, 3_000_000)),
    buckets=st.sampled_from([((0, 1), (2,), (3, 4)), ((4,), (3,), (2,), (1,), (0,)), ((0, 1, 2, 3, 4),)]),
    slowness=st.tuples(*[st.floats(0.5, 2)] * 3),
    stalls=st.tuples(*[st.sampled_from([0.0, 0.01, 0.05])] * 3),
    latency=st.sampled_from([0.0, 1e-4, 2e-3]),
    per_byte=st.sampled_from([1e-10, 1e-9, 2e-8]),
    hold=st.sampled_from([0.0, 0.004]),
    idle=st.sampled_from([0.0, 0.002]),
    used_map=st.booleans(),
)


@settings(max_examples=examples(18))
@given(JOBS)
def test_causes_add_up_to_the_replay_and_parts_to_the_step(job):
    trace = trace_of(job)
    found = explain_trace(trace)
    for step in found.steps:
        work = median(rank.steps[step.number].compute_time for rank in trace.ranks)
        left = step.gains.replayed - sum(step.gains.seconds.values())
        assert 0 <= left <= work + 1e-9
        if len(set(job.slowness)) == 1:  # else a median rank may work longer than the mean of the ranks takes
            assert left == pytest.approx(work)
        assert total(step.parts) == pytest.approx(step.time)
        assert step.gains.replayed == pytest.approx(step.time, rel=1e-6)
    assert list(found.gains) == list(CAUSES)
    assert all(gain >= 0 for gain in found.gains.values())


@settings(max_examples=examples(9))
@given(JOBS, st.floats(0.1, 10))
def test_another_unit_of_time_gives_the_same_causes(job, factor):
    job = replace(job, hold=0.0)  # which of equal ranks sets the pace decides how much of it is seen
    slower = replace(
        job, forward=job.forward * factor, backward=job.backward * factor, update=job.update * factor,
        stalls=tuple(stall * factor for stall in job.stalls), latency=job.latency * factor,
        per_byte=job.per_byte * factor, idle=job.idle * factor,
    )  # fmt: skip
    one, other = (explain_trace(trace_of(each)) for each in (job, slower))
    for cause, gain in one.gains.items():
        # The clocks' grain (50 us) is the one absolute figure.
        assert other.gains[cause] == pytest.approx(gain * factor, rel=0.02, abs=2e-4 * max(1, factor))


def test_the_straggler_and_the_network_are_both_named():
    found = explain_trace(trace_of(replace(HEALTHY, slowness=(1.0, 1.0, 2.0), stalls=(0.0,) * 3, per_byte=6e-9)))
    assert (found.straggler, found.network) == (2, "bandwidth")
    assert "Bandwidth:" in found.verdict
    assert "Imbalance: rank 2 takes 94.00 ms longer" in found.verdict


@pytest.mark.parametrize("places", [(2, 18, 34), (3, 19, 35), (2, 19, 30, 35)])
def test_a_small_message_that_was_held_up_is_no_sign_of_bandwidth(places):
    job = replace(TINY, stuck=dict.fromkeys(places, 8 * MILLI))
    found = explain_trace(trace_of(job))
    assert found.cause == "latency"
    assert found.gains["bandwidth"] < 0.01 * found.gains["latency"]


def test_a_large_message_is_held_up_in_what_it_sends():
    large = replace(HEALTHY, gradients=(4_000_000, 1_000_000) * 5, stuck={2: 200 * MILLI})
    found = explain_trace(trace_of(large))
    assert found.gains["latency"] < 0.1 * found.gains["bandwidth"]
    assert found.cause == "bandwidth"


def test_messages_without_sizes_have_no_start_up_to_tell():
    """Sizes of two of ten are known, which give a line; the others are not all start-up for that."""
    job = replace(HEALTHY, gradients=(4_000_000, 1_000_000) * 5, per_byte=2e-8, latency=1 * MILLI)
    whole = explain_trace(trace_of(job))
    ranks = []
    for rank in trace_of(job).ranks:
        steps = tuple(replace(step, collectives=_sizes_of_two(step.collectives)) for step in rank.steps)
        ranks.append(replace(rank, steps=steps))
    found = explain_trace(replace(trace_of(job), ranks=tuple(ranks)))
    assert whole.cause == found.cause == "bandwidth"
    assert found.gains["latency"] <= whole.gains["latency"]
    assert "at least 4.768 MiB a step" in found.verdict


def _sizes_of_two(collectives):
    return tuple(replace(one, elements=one.elements if place < 2 else None) for place, one in enumerate(collectives))


def test_start_ups_of_a_table_are_not_the_time_of_its_smallest_message():
    """A proportional table from 1 MB on, as some that are published begin: nothing of it is start-up."""
    job = replace(HEALTHY, gradients=(4_000_000, 2_000_000) * 5, per_byte=2e-8, latency=0.0)
    trace = trace_of(job)
    table = osf.Table(2, (1_000_000, 2_000_000, 4_000_000), (0.02, 0.04, 0.08))
    found = explain_trace(trace, osf.Cluster("large", "tabulated", tables=(table,)))
    assert found.cause == "bandwidth"
    assert found.gains["latency"] < 0.01 * found.step_time
    assert explain_trace(trace, cluster_of(trace)).cause == "bandwidth"
    said = "the smallest message's time (1.907 MiB, 40.00 ms) counts as start-up"
    assert any(remark.startswith(said) for remark in osf.explain(trace).remarks)
    assert not any("smallest message" in remark for remark in osf.explain(trace_of(TINY)).remarks)


@pytest.mark.parametrize("times", [(0.0, 1e-5), (0.0, 0.0)])
def test_a_table_of_times_too_short_to_print_has_no_start_ups(times):
    cluster = osf.Cluster("short", "tabulated", tables=(osf.Table(2, (8, 16), times),))
    found = osf.explain(trace_of(TINY), cluster)
    assert found.gains["latency"] == pytest.approx(0.0, abs=1e-9)
    assert found.cause == "bandwidth"


def test_a_faster_cluster_does_not_make_start_ups_bytes():
    """Messages that take ten times what it says do so in start-up and bytes alike, as remedies price them."""
    small = osf.load_cluster("ring:25us,10Gbps")
    assert explain_trace(trace_of(TINY), small).cause == "latency"
    large = osf.load_cluster("ring:25us,100Gbps")
    assert explain_trace(trace_of(replace(HEALTHY, per_byte=2e-8)), large).cause == "bandwidth"


def test_causes_rest_and_error_add_up_to_the_step():
    found = explain_trace(trace_of(BACKWARDS))
    off = replace(found, replayed=found.replayed - 0.1 * found.step_time)
    names = [cost.name for cost in costs(found)]
    assert "unexplained" not in names
    assert costs(off)[-1][:2] == ("unexplained", pytest.approx(0.1 * found.step_time))
    assert sum(cost.seconds for cost in costs(off)) == pytest.approx(found.step_time, rel=0.01)


def test_messages_are_those_of_the_rank_that_is_named():
    slow = replace(HEALTHY, slowness=(1.6, 1.0, 1.5), stalls=(0.0,) * 3)
    found = explain_trace(trace_of(slow))
    assert found.sender == 2
    assert whose_messages(found) == "Messages of rank 2, the median by own work."
    assert whose_messages(explain_trace(trace_of(replace(slow, traced=(1,))))) == ""


def test_one_rank_alone_names_missing_data():
    slow = replace(HEALTHY, slowness=(1.0, 1.6), traced=(0,))
    found = explain_trace(trace_of(slow))
    assert found.parts.waiting is None
    assert found.gains["imbalance"] == 0
    assert found.straggler is None
    assert any("traces of all ranks" in remark for remark in found.remarks)
    assert not any(
        "traces of all ranks" in remark for remark in explain_trace(trace_of(replace(slow, traced=()))).remarks
    )


def test_a_cluster_says_what_could_be():
    fast = osf.load_cluster("ring:0us,100Gbps")
    rows = explain_trace(trace_of(HEALTHY), fast).buckets
    assert rows[0].possible == pytest.approx(12.5e9)
    assert rows[0].bandwidth == pytest.approx(4e6 / 4.1e-3)
    assert explain_trace(trace_of(HEALTHY)).buckets[0].possible == pytest.approx(4e6 / 4.1e-3)
    # With start-ups known, messages all of one size no longer leave them open.
    cluster = osf.load_cluster("ring:250us,100Gbps")
    tiny = replace(TINY, gradients=(3000,) * 40)
    assert explain_trace(trace_of(tiny), cluster).cause == "latency"
    unsure = explain_trace(trace_of(tiny))
    assert unsure.cause == "bandwidth"
    assert any("give --cluster" in remark for remark in unsure.remarks)


def test_a_message_is_compared_with_the_fastest():
    """Small ones are far below it, since they are start-up; with one message there is nothing to compare."""
    job = replace(HEALTHY, gradients=(1_000_000, 4_000_000, 4_000_000, 8_000_000), buckets=((0,), (1,), (2,), (3,)))
    rows = explain_trace(trace_of(job)).buckets
    small, one, _, large = (row.bandwidth for row in rows)
    assert small < one < large
    assert [row.possible for row in rows] == [large] * 4
    (alone,) = explain_trace(trace_of(replace(job, buckets=((0, 1, 2, 3),)))).buckets
    assert alone.possible is None


@given(
    st.lists(st.tuples(st.floats(0.5, 2), st.floats(0, 0.02)), min_size=1, max_size=9),
    st.sampled_from([(), (0,)]),
)
@settings(max_examples=examples(8))
def test_rows_of_messages_add_up_whatever_the_steps_are(steps, traced):
    """On steps that each take another time, and begin to send at another."""
    trace = trace_of(replace(HEALTHY, steps=len(steps), slowness=(1.0, 1.3), traced=traced))
    ranks = tuple(
        replace(rank, steps=tuple(stretched(step, *how) for step, how in zip(rank.steps, steps, strict=True)))
        for rank in trace.ranks
    )
    for row in explain_trace(replace(trace, ranks=ranks)).buckets:
        assert row.end - row.start == pytest.approx(row.hidden + row.exposed + (row.waiting or 0.0), abs=1e-12)
        assert row.bandwidth == pytest.approx(row.bytes / row.wire)


def stretched(step: Step, factor: float, later: float) -> Step:
    """The same, ``factor`` times as long, and its messages ``later`` by as many seconds."""

    def at(time: float) -> float:
        return step.start + (time - step.start) * factor

    def span(one: tuple[float, float]) -> tuple[float, float]:
        return at(one[0]), at(one[1])

    sent = tuple(
        replace(
            one,
            start=at(one.start) + later,
            end=at(one.end) + later,
            issued=None if one.issued is None else at(one.issued),
            arrival=None if one.arrival is None else at(one.arrival) + later,
        )
        for one in step.collectives
    )
    return replace(
        step,
        end=max([at(step.end), *(one.end for one in sent)]),
        compute=tuple(map(span, step.compute)),
        copies=tuple(map(span, step.copies)),
        inputs=tuple(map(span, step.inputs)),
        gradients=tuple(
            replace(one, ready=at(one.ready), accumulated=None if one.accumulated is None else at(one.accumulated))
            for one in step.gradients
        ),
        collectives=sent,
        forward=step.forward and span(step.forward),
        backward=step.backward and span(step.backward),
        update=step.update and span(step.update),
    )


def test_messages_are_those_of_the_usual_steps():
    """The odd step appears in no row of the table."""
    steps = trace_of(replace(HEALTHY, steps=3, traced=(0,)))
    (rank,) = steps.ranks
    odd = [replace(rank, steps=(stretched(rank.steps[0], how, 0.0), *rank.steps[1:])) for how in (0.5, 3.0)]
    usual = explain_trace(steps, steps=[1]).buckets
    for one in odd:
        found = explain_trace(replace(steps, ranks=(one,))).buckets
        assert [row.end for row in found] == pytest.approx([row.end for row in usual])


def test_hidden_and_exposed_add_up_to_the_transfer():
    rows = explain_trace(trace_of(HEALTHY)).buckets
    assert [row.exposed for row in rows[:-1]] == pytest.approx([0] * 9, abs=1e-12)
    assert rows[-1].exposed == pytest.approx(4.1e-3)
    assert all(row.hidden + row.exposed == pytest.approx(row.transfer) for row in rows)


def test_two_times_of_a_step_are_both_told():
    """A rank ends its step 30 ms after the other, as if profilers stopped at different times."""
    trace = trace_of(replace(HEALTHY, steps=1))
    first, other = trace.ranks
    (step,) = other.steps
    late = replace(step, end=step.end + 0.03)
    skewed = replace(trace, ranks=(first, replace(other, steps=(late,))))
    imported = measurement_of(skewed).iteration_time
    found = explain_trace(skewed)
    assert found.step_time == pytest.approx(imported + 0.015)
    (said,) = [remark for remark in found.remarks if "osf import takes" in remark]
    assert show_time(found.step_time) in said
    assert show_time(imported) in said
    assert not any("osf import takes" in remark for remark in explain_trace(trace).remarks)


def test_steps_are_chosen_by_number():
    trace = trace_of(HEALTHY)
    assert [step.number for step in explain_trace(trace, steps=[1]).steps] == [1]
    other = trace.ranks[1]
    later = replace(other, steps=tuple(replace(step, number=step.number + 10) for step in other.steps))
    apart = replace(trace, ranks=(trace.ranks[0], later, *trace.ranks[2:]))
    with pytest.raises(DataError, match=r": no step is on the record of all ranks: rank 0 has 0\.\.2, rank 1 has 10"):
        explain_trace(apart)
    with pytest.raises(DataError, match=r": no step is on the record of all ranks: rank 0 has 1, rank 1 has 11"):
        explain_trace(apart, steps=[1, 11])
    for steps, said in (([7], "7"), ([7, 9], "7, 9"), (range(7, 10), r"7\.\.9")):
        with pytest.raises(DataError, match=rf": rank 0 has no steps {said}: it has 0\.\.2$"):
            explain_trace(trace, steps=steps)


@pytest.mark.parametrize("job", PLANTED)
def test_the_own_work_of_a_rank_is_the_rest_of_its_parts(job):
    """Its clock that stands still in waits agrees with the sum of parts."""
    for rank in trace_of(PLANTED[job]).ranks:
        for step in rank.steps:
            seen = SeenStep.of(step, True)
            parts = parts_of(step, seen.waits)
            assert seen.own_work == pytest.approx(step.time - parts.exposed - parts.input, rel=1e-9)


def test_a_pause_is_a_wait_only_where_a_collective_ends_in_it():
    message = Collective("all_reduce", 1.0, 5.0, issued=0.5)
    pauses = Step(0, 0.0, 10.0, ((0.0, 2.0), (3.0, 4.0), (6.0, 9.0)), (message,))
    assert [(wait.start, wait.end) for wait in waits(pauses)] == [(4.0, 5.0)]
    parts = parts_of(pauses, waits(pauses))
    assert (parts.transfer, parts.waiting, parts.idle, parts.compute) == (1.0, None, 3.0, 6.0)


def test_a_host_waits_for_the_gradients_of_ddp_only_after_backward():
    """The first of two messages ends in a pause of backward, in which the thread that trains was not scheduled."""
    sizes = [{"elements": 10, "dtype": "float32"}] * 2
    ready = tuple(GradientReady(time, accumulated=time, **size) for time, size in zip((2.0, 5.0), sizes, strict=True))
    messages = tuple(
        Collective("all_reduce", start, end, issued=start, **size)
        for (start, end), size in zip(((2.0, 3.5), (5.0, 7.0)), sizes, strict=True)
    )
    compute = ((0.0, 3.0), (4.0, 5.0), (7.0, 8.0))
    step = Step(0, 0.0, 8.0, compute, messages, ready, backward=(1.0, 5.0), update=(7.0, 8.0), ddp=True)
    late = [(5.0, 7.0)]
    anywhere = [(3.0, 3.5), *late]
    for one, host_computes, expected in (
        (step, True, late),
        (step, False, anywhere),
        (replace(step, ddp=False), True, anywhere),
    ):
        assert [(wait.start, wait.end) for wait in SeenStep.of(one, host_computes).waits] == expected


def test_pieces_of_a_bucket_count_by_their_bytes_and_alike_where_these_are_not_known():
    def pieces(first, second):
        ready = tuple(
            GradientReady(time, None, count, "float32", time) for time, count in ((2.0, first), (5.0, second))
        )
        message = Collective("all_reduce", 5.0, 7.0, 5.0, 40, "float32")
        backward = Step(0, 0.0, 8.0, ((0.0, 5.0), (7.0, 8.0)), (message,), ready, backward=(1.0, 5.0), ddp=True)
        (found,) = sent(backward, host_computes=False)
        return found.pieces

    assert pieces(10, 30) == ((2.0, 0.25), (5.0, 0.75))
    assert pieces(None, None) == ((2.0, 0.5), (5.0, 0.5))


def test_time_before_the_last_rank_comes_is_waiting_and_before_the_start_is_held():
    message = Collective("all_reduce", 3.0, 5.0, issued=1.0, arrival=4.5)
    step = Step(0, 0.0, 6.0, ((0.0, 2.0), (5.0, 6.0)), (message,))
    parts = parts_of(step, waits(step))
    assert (parts.held, parts.waiting, parts.transfer, parts.idle) == (1.0, 1.5, 0.5, 0.0)


def test_collectives_in_flight_share_the_network():
    both = [Collective("all_reduce", 0.0, 4.0), Collective("all_reduce", 2.0, 4.0), Collective("all_reduce", 9.0, 9.0)]
    assert wire_times(both) == [3.0, 1.0, 0.0]
    assert wire_times([]) == []


def test_a_clock_stands_still_in_intervals_left_out():
    clock = LocalClock(1.0, [(2.0, 3.0), (5.0, 6.0), (0.0, 0.5)])
    assert [clock.at(time) for time in (1.0, 2.5, 4.0, 5.5, 7.0)] == [0.0, 1.0, 2.0, 3.0, 4.0]


INTERVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: (min(pair), max(pair))), max_size=6
)


@given(INTERVALS, INTERVALS)
def test_without_is_the_difference_of_sets(one, other):
    def seconds(intervals):
        return {second for start, end in intervals for second in range(start, end)}

    assert seconds(without(one, other)) == seconds(one) - seconds(other)


def test_a_job_that_never_communicates_is_compute_bound():
    step = Step(0, 0.0, 1.0, ((0.0, 0.99),))
    found = explain_trace(Trace("alone", (RankTrace(0, (step,)),)))
    assert (found.cause, found.buckets, found.workers) == ("compute", (), 1)
    assert found.remarks == ()


def remedies_of(job: Job, **given):
    """By name."""
    return {remedy.name: remedy for remedy in osf.explain(trace_of(job), **given).remedies}


BY_HAND = replace(BACKWARDS, used_map=False, ddp=False)
"""A job that sends its gradients itself, after backward."""


def test_without_ddp_messages_after_backward_are_late_and_none_of_its_settings_helps():
    """They cost the same, whoever sends them."""
    by_hand, by_ddp = (explain_trace(trace_of(replace(BY_HAND, ddp=ddp))) for ddp in (False, True))
    assert (by_hand.cause, by_hand.gains["find-unused"]) == ("late-bucket", 0.0)
    assert by_ddp.cause == "find-unused"
    assert by_hand.left == pytest.approx(by_ddp.left)
    last = show_time(max(row.ready for row in by_hand.buckets))
    begin = f"Late bucket: all 10 messages begin only when the last gradient is there, {last} into the step."
    assert by_hand.verdict.startswith(begin)
    assert explain_trace(trace_of(GIANT)).verdict.startswith("Late bucket: the only bucket ")


def test_remedies_are_settings_of_ddp_only_where_the_trace_shows_it():
    by_hand, by_ddp = remedies_of(BY_HAND), remedies_of(replace(BY_HAND, ddp=True))
    assert "static-graph" in by_ddp
    assert set(by_hand) == set(by_ddp) - {"static-graph"}
    settings = ("hook", "no_sync", "static_graph", "find_unused", "for DDP")
    assert not [one.what for one in by_hand.values() if any(word in one.what for word in settings)]
    assert {one.what for one in by_hand.values()} >= {
        "gradients sent as fp16 or bf16", "PowerSGD, rank 4", "2 micro-batches a step",
        "DDP with the best buckets (osf tune)",
    }  # fmt: skip
    assert by_ddp["accumulate-2"].what == "2 micro-batches a step (no_sync)"


SLOW = replace(
    HEALTHY, gradients=(1_000_000, 6_000_000, 3_000_000, 8_000_000, 2_000_000), buckets=((0,), (1, 2), (3, 4)),
    per_byte=1e-8, latency=0.0,
)  # fmt: skip
"""Its messages take time in proportion to their bytes."""


@pytest.mark.parametrize(
    ("name", "change", "samples"),
    [
        ("half", {"gradients": tuple(size // 2 for size in SLOW.gradients)}, 1),
        ("network-2", {"per_byte": 5e-9}, 1),
        ("network-10", {"per_byte": 1e-9}, 1),
        ("workers-1", {"per_byte": 0.0}, 0.5),
        ("accumulate-4", {"forward": 4 * SLOW.forward + 3 * 5 * SLOW.backward}, 4),
        ("balance", {"slowness": (1.0, 1.0)}, 1),
    ],
)
def test_a_remedy_brings_what_the_job_gains_by_it(name, change, samples):
    """The oracle is the made-up job, run with the remedy."""
    cluster = osf.Cluster("line", "hockney", fits=(osf.AlphaBeta(2, 0.0, SLOW.per_byte),))
    sick = replace(SLOW, slowness=(1.0, 1.3)) if name == "balance" else SLOW
    found = remedies_of(sick, cluster=cluster)[name]
    assert found.step_time == pytest.approx(step_time(replace(sick, **change)), rel=1e-3)
    assert found.throughput == pytest.approx(samples * step_time(sick) / found.step_time)


def test_prices_of_the_trace_itself_do_as_well():
    assert remedies_of(SLOW)["half"].step_time == pytest.approx(
        step_time(replace(SLOW, gradients=tuple(size // 2 for size in SLOW.gradients))), rel=0.02
    )


def test_messages_of_about_one_size_do_not_make_bytes_free():
    """A larger one that happened to take less would else price all alike, so that no faster network helped."""
    job = replace(SLOW, gradients=(4_000_000, 3_900_000), buckets=((0,), (1,)), latency=0.0)
    trace = trace_of(job)

    def shorter(step):
        first, last = step.collectives
        return replace(step, collectives=(replace(first, end=first.end - 0.01), last))

    ranks = [replace(rank, steps=tuple(map(shorter, rank.steps))) for rank in trace.ranks]
    (line,) = cluster_of(replace(trace, ranks=tuple(ranks))).fits
    assert line.seconds_per_byte == pytest.approx((7_900_000 * 1e-8 - 0.01) / 7_900_000)
    found = {one.name: one for one in osf.explain(replace(trace, ranks=tuple(ranks))).remedies}
    assert found["half"].step_time == pytest.approx((119 - 39 / 2) * MILLI)  # the first one is hidden
    assert found["network-10"].throughput > found["network-2"].throughput > 1.15


def test_prices_of_a_cluster_are_slowed_to_what_the_trace_shows():
    """A network that was stated four times as fast as it is: as it is stated it would bring four times."""
    cluster = osf.Cluster("line", "hockney", fits=(osf.AlphaBeta(2, 0.0, SLOW.per_byte / 4),))
    found = remedies_of(SLOW, cluster=cluster)
    said = "all-reduces took 4 times as long as the cluster says"
    assert any(remark.startswith(said) for remark in osf.explain(trace_of(SLOW), cluster).remarks)
    assert found["network-2"].step_time == pytest.approx(step_time(replace(SLOW, per_byte=5e-9)), rel=1e-3)
    assert found["stated-network"].step_time == pytest.approx(step_time(replace(SLOW, per_byte=2.5e-9)), rel=1e-3)
    assert "stated-network" not in remedies_of(SLOW)


def test_the_best_plan_is_that_of_tune():
    cluster = osf.load_cluster("ring:500us,1Gbps")
    found = remedies_of(replace(TINY, latency=1e-3, per_byte=8e-9), cluster=cluster)["plan"]
    assert found.throughput > 1.3
    assert found.by == "replay"


def test_a_remedy_with_larger_messages_than_any_that_was_measured_says_so():
    tiny = remedies_of(TINY)
    assert tiny["plan"].throughput > 1.1
    assert BEYOND in tiny["plan"].note
    assert BEYOND not in tiny["half"].note
    assert BEYOND not in remedies_of(GIANT)["plan"].note
    # Words and fits without tables were measured nowhere, so that nothing is beyond.
    assert BEYOND not in remedies_of(TINY, cluster=osf.load_cluster("ring:500us,1Gbps"))["plan"].note


def test_a_remedy_without_a_price_says_why():
    cluster = osf.Cluster("line", "hockney", fits=(osf.AlphaBeta(4, 0.0, 1e-9),))
    four = replace(HEALTHY, slowness=(1.0,) * 4, stalls=(0.0,) * 4)
    found = remedies_of(four, cluster=cluster)["workers-half"]
    assert (found.throughput, found.step_time) == (None, None)
    assert "no all_reduce fit for 2 workers" in found.note


def test_without_sizes_nothing_that_communicates_is_priced():
    trace = trace_of(HEALTHY)
    bare = replace(
        trace,
        ranks=tuple(
            replace(rank, steps=tuple(replace(step, gradients=(), collectives=tuple(
                replace(one, elements=None) for one in step.collectives)) for step in rank.steps))
            for rank in trace.ranks
        ),
    )  # fmt: skip
    found = osf.explain(bare)
    assert {one.name for one in found.remedies} == {"network-2", "network-10"}, "which the replay prices"
    assert {one.note for one in found.remedies} == {"upper limit: start-ups are counted as bytes"}
    assert any("are not priced" in remark for remark in found.remarks)
    assert found.buckets[0].bandwidth is None


def sent_in(trace: Trace, dtype: str, held: str) -> Trace:
    """With messages of that type, and gradients of ``held``."""

    def changed(step: Step) -> Step:
        messages = tuple(replace(one, dtype=dtype) for one in step.collectives)
        return replace(step, collectives=messages, gradients=tuple(replace(one, dtype=held) for one in step.gradients))

    return replace(trace, ranks=tuple(replace(rank, steps=tuple(map(changed, rank.steps))) for rank in trace.ranks))


@pytest.mark.parametrize(("dtype", "sent_as"), [("float16", "fp16"), ("bfloat16", "bf16")])
def test_gradients_sent_in_16_bits_get_no_such_remedy(dtype, sent_as):
    """By a hook, which casts what is held in 32 bits, and of a model in 16 bits, which is compressed in no way."""
    trace = trace_of(SLOW)
    assert "half" in {one.name for one in osf.explain(trace).remedies}
    for held, how in (("float32", sent_as), (dtype, "")):
        halved = sent_in(trace, dtype, held)
        workload = workload_of(halved)
        assert workload.sent_as == how
        assert workload.gradient_bytes == sum(SLOW.gradients) // 2
        assert sum(workload.gradients.held_sizes) == sum(SLOW.gradients) // (1 if how else 2)
        assert own_step(halved) == pytest.approx(step_time(SLOW), rel=1e-3)
        found = osf.explain(halved)
        assert "half" not in {one.name for one in found.remedies}
        assert not any("step of this job is off" in remark for remark in found.remarks)
        assert found.gains == pytest.approx(explain_trace(trace).gains), "only bytes are other ones"


def with_others(trace, seconds):
    """The last step of the trace with an all-to-all at its end, which nothing hides."""
    ranks = []
    for rank in trace.ranks:
        step = rank.steps[-1]
        end = step.end + seconds
        other = Collective("all_to_all", step.end, end, step.end, 10**6, "float32", workers=len(trace.ranks))
        ranks.append(replace(rank, steps=(replace(step, end=end, collectives=(*step.collectives, other)),)))
    return replace(trace, ranks=tuple(ranks))


@pytest.mark.parametrize(("seconds", "told"), [(0.02, True), (1e-4, False)])
def test_other_collectives_that_keep_the_device_waiting_are_a_caution(seconds, told):
    """From a hundredth of a step on: a step of SLOW is 242 ms long."""
    found = cautions(with_others(trace_of(SLOW), seconds))
    assert any("exposed in collectives other than all-reduces" in one for one in found) == told


def test_remedies_of_the_network_have_no_price_where_other_collectives_matter():
    """The model has these as computation. The replay has them, and a faster network serves them too."""
    other = {one.name: one for one in osf.explain(with_others(trace_of(SLOW), 0.02)).remedies}
    without = remedies_of(SLOW)
    assert without["workers-1"].step_time is not None
    assert other["workers-1"].step_time is None
    assert "are exposed in collectives other than all-reduces" in other["workers-1"].note
    assert other["half"].step_time is not None
    (line,) = [words for words in others(tuple(other.values())) if "not priced" in words]
    assert line.startswith("training on 1 of the 2 workers: not priced: 20.00 ms")
    for factor in (2, 10):
        name = f"network-{factor}"
        assert other[name].step_time == pytest.approx(without[name].step_time + 0.02 / factor, abs=0.001)


@pytest.mark.parametrize("job", [SLOW, BACKWARDS, *PLANTED.values()])
def test_what_a_faster_network_saves_agrees_with_what_causes_cost(job):
    """One replay prices both: bandwidth cost 10.55 ms a step where a ten times faster network saved 1.8 ms."""
    found = osf.explain(with_others(trace_of(job), 0.02))
    saved = {one.name: found.step_time - one.step_time for one in found.remedies if one.step_time is not None}
    assert 0 <= saved["network-2"] <= saved["network-10"]
    assert saved["network-10"] >= 0.85 * found.gains["bandwidth"]
    of_network = [found.gains[name] for name, cause in CAUSES.items() if cause.of_network]
    assert saved["network-10"] <= sum(of_network) + 1e-9


def test_no_negative_time_is_printed():
    """A replay that takes longer than the step costs no negative remainder; costs then add up to the step."""
    found = explain_trace(trace_of(BACKWARDS))
    longer = replace(found, replayed=1.2 * found.step_time)
    assert "unexplained" not in [cost.name for cost in costs(longer)]
    assert all(cost.seconds >= 0 for cost in costs(longer))
    assert longer.left <= longer.step_time
    assert show_time(-2.184e-3) == "-2.184 ms"


def test_costs_of_a_replay_that_takes_longer_are_scaled_to_the_step():
    """Two messages in flight at once share the network in the trace; one after the other they take longer."""
    one = Collective("all_reduce", 0.5, 4.0, 0.5, 1000, "float32", "dims", "0", 0, 2)
    step = Step(0, 0.0, 5.0, ((0.0, 1.0), (4.0, 5.0)), (one, replace(one, start=1.0, sequence=1)))
    found = explain_trace(Trace("beside", (RankTrace(0, (step,), 2, "GPU", "nccl"),)))
    assert sum(found.gains.values()) + found.left == pytest.approx(min(found.step_time, found.replayed))


def test_an_all_reduce_of_no_gradients_is_no_map_of_used_parameters():
    """The all-reduce of a loss, or of SyncBatchNorm's, is of float32."""
    found = osf.explain(trace_of(SLOW))
    row = next(row for row in found.buckets if row.kind == "all_reduce")
    said = [
        find_unused(replace(found, buckets=(replace(row, dtype=dtype, gradients=False),)), 1.0)
        for dtype in ("float32", "int32")
    ]
    assert ["find_unused_parameters" in words for words in said] == [False, True]


def test_remedies_count_on_from_the_micro_batches_of_the_job():
    trace = trace_of(SLOW)
    ranks = [replace(rank, steps=tuple(replace(step, micro_batches=3) for step in rank.steps)) for rank in trace.ranks]
    found = {one.name: one for one in osf.explain(replace(trace, ranks=tuple(ranks))).remedies}
    assert found["accumulate-2"].what == "6, not 3, micro-batches a step (no_sync)"
    assert found["accumulate-2"].step_time == remedies_of(SLOW)["accumulate-2"].step_time
    assert remedies_of(SLOW)["accumulate-2"].what == "2 micro-batches a step (no_sync)"


TIMES = st.floats(0, 10)
SPANS = st.lists(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))), max_size=5)


@st.composite
def anything(draw):
    """A trace whose events are anywhere."""
    ranks = []
    for rank in range(draw(st.integers(1, 3))):
        collectives = [
            Collective(
                draw(st.sampled_from(["all_reduce", "all_gather", "broadcast"])), start, end,
                draw(st.none() | TIMES), draw(st.none() | st.integers(0, 10**7)),
                draw(st.sampled_from([None, "float32", "int32"])), "", draw(st.sampled_from(["0", "1"])),
                draw(st.none() | st.integers(0, 3)), None, draw(st.none() | TIMES),
            )
            for start, end in draw(SPANS)
        ]  # fmt: skip
        gradients = [
            GradientReady(time, None, draw(st.none() | st.integers(0, 10**6)), "float32", draw(st.none() | TIMES))
            for time in draw(st.lists(TIMES, max_size=4))
        ]
        compute, copies, inputs = (union(draw(SPANS)) for _ in range(3))
        backward = draw(st.none() | st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))))
        step = Step(0, 0.0, 10.0, compute, tuple(collectives), tuple(gradients), copies, inputs, None, backward)
        ranks.append(RankTrace(rank, (step,), draw(st.none() | st.integers(1, 4)), host_computes=draw(st.booleans())))
    return Trace("anything", tuple(ranks))


@settings(max_examples=examples(24))
@given(anything())
def test_whatever_is_in_a_trace_causes_and_parts_add_up(trace):
    try:
        found = osf.explain(trace)
    except DataError as error:
        if " disagree: " in str(error):  # ranks that are not of one job
            return
        raise
    assert sum(found.gains.values()) + found.left == pytest.approx(min(found.replayed, found.step_time), abs=1e-9)
    assert min(found.gains.values()) >= 0
    assert found.verdict
    if all(end <= 10 for rank in trace.ranks for _, end in rank.steps[0].compute):
        assert total(found.parts) == pytest.approx(10, abs=1e-9)


def test_a_pause_that_ends_before_its_collective_is_idleness_in_both_tables():
    """The device pauses from 1 to 2 s and from 3 to 5 s; the all-reduce from 0.5 to 4 s ends in the second alone."""
    one = Collective("all_reduce", 0.5, 4.0, 0.5, 1000, "float32", "dims", "0", 0, 2)
    compute = ((0.0, 1.0), (2.0, 3.0), (5.0, 6.0))
    step = Step(0, 0.0, 6.0, compute, (one,), (), (), (), (0.0, 0.2), (0.2, 3.0), (5.0, 6.0))
    found = explain_trace(Trace("paused", (RankTrace(0, (step,), 2, "GPU", "nccl"),)))
    (row,) = found.buckets
    assert (found.parts.transfer, found.parts.idle) == (1.0, 2.0)
    assert (row.exposed, row.hidden) == (1.0, 2.5)


@pytest.mark.parametrize("cause", sorted({*PLANTED} - {"imbalance", "uneven-exchange", "shared-network"}))
def test_messages_are_exposed_for_as_long_as_the_step_waits_for_transfers(cause):
    """One after the other, so that no second is counted for two of them."""
    found = explain_trace(trace_of(replace(PLANTED[cause], steps=1)))
    assert sum(row.exposed for row in found.buckets) == pytest.approx(found.parts.transfer)
