"""Replays of a changed job agree with the made-up job that is run with the change, and with the causes."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel.diagnosis import CAUSES
from osfmodel.diagnosis.changed_steps import (
    on_one_worker,
    with_buckets,
    with_gradients_of,
    with_micro_batches,
    with_prices,
)
from osfmodel.diagnosis.explain_trace import replayed_trace
from osfmodel.entities.errors import DataError
from osfmodel.entities.trace import RankTrace, Step, Trace
from osfmodel.formats import load_trace
from osfmodel.planning.explaining import explain
from osfmodel.planning.remedies import REMEDIES
from tests.draws import examples
from tests.jobs import BACKWARDS, BESIDE, HEALTHY, MILLI, PLANTED, Job, trace_of
from tests.kept import kept
from tests.live import explained

SIZES = (4_000_000, 1_000_000, 8_000_000, 2_000_000, 3_000_000, 6_000_000)
JOB = replace(HEALTHY, gradients=SIZES, buckets=((0, 1), (2,), (3, 4, 5)), per_byte=2e-9, latency=1 * MILLI)
LINE = osf.Cluster("line", "hockney", fits=(osf.AlphaBeta(2, JOB.latency, JOB.per_byte),))


def changed(job: Job, change) -> float:
    """Seconds of the last step, changed, with the start-ups and bytes that the job was made up with."""
    _, replays = replayed_trace(trace_of(job), LINE, steps=[job.steps - 1])
    return change(replays[0])


def step_time(job: Job) -> float:
    """Seconds of the last step, the mean over the ranks."""
    return fmean(rank.steps[-1].time for rank in trace_of(job).ranks)


@st.composite
def partitions(draw):
    """Buckets of all gradients in their order."""
    ends = sorted({*draw(st.sets(st.integers(1, len(SIZES) - 1))), len(SIZES)})
    return tuple(tuple(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False))


def sizes_of(buckets):
    return [sum(SIZES[i] for i in bucket) for bucket in buckets]


def price(size):
    return JOB.latency + JOB.per_byte * size


@settings(max_examples=examples(18), deadline=None)
@given(partitions(), partitions(), st.sampled_from([(1.0, 1.0), (1.0, 1.4, 0.7)]))
def test_other_buckets_take_what_the_job_takes_with_them(now, then, slowness):
    """Whatever the buckets are now."""
    job = replace(JOB, buckets=now, slowness=slowness, stalls=(0.0,) * len(slowness))
    cost = osf.Cluster("line", "hockney", fits=(osf.AlphaBeta(len(slowness), JOB.latency, JOB.per_byte),))
    _, replays = replayed_trace(trace_of(job), cost, steps=[job.steps - 1])
    assert with_buckets(replays[0], sizes_of(then), price) == pytest.approx(step_time(replace(job, buckets=then)))


def test_buckets_stay_out_of_order_where_ddp_has_them_so():
    """Their last gradients are ready when backward is over."""
    job = replace(JOB, buckets=((5, 4), (3, 2), (1, 0)))
    found = changed(job, lambda replays: with_buckets(replays, sizes_of(((0,), (1,), (2,), (3,), (4,), (5,))), price))
    assert found >= step_time(replace(job, buckets=((5,), (4,), (3,), (2,), (1,), (0,)))) - 1e-9
    by_hand = replace(job, ddp=False)
    found = changed(by_hand, lambda replays: with_buckets(replays, sizes_of(((0, 1), (2,), (3, 4, 5))), price))
    assert found == pytest.approx(step_time(JOB))


def test_fewer_messages_leave_less_idle_time_between_waits():
    """A thread that wakes up 2 ms after each of three messages does so once; it copies as many bytes."""
    trace = woken(3, 2 * MILLI)
    _, replays = replayed_trace(trace, steps=[0])
    end = trace.ranks[0].steps[0].backward[1]
    assert replays[0].traced.duration == pytest.approx(end + (3 * 20 + 2 + 1) * MILLI)
    assert with_buckets(replays[0], [12_000_000], float) == pytest.approx(end + (3 * 20 + 2 + 3 * 1) * MILLI)


def woken(count: int, late: float) -> Trace:
    """A step whose ``count`` messages are all ready at the end of backward, each with a pause after it and its copy."""
    job = replace(
        HEALTHY, gradients=(4_000_000,) * count, buckets=tuple((i,) for i in range(count)), steps=1, latency=0.0,
        per_byte=5e-9,
    )  # fmt: skip
    ranks = []
    for rank in trace_of(job).ranks:
        (step,) = rank.steps
        begin, messages, compute = step.backward[1], [], [one for one in step.compute if one[1] <= step.backward[1]]
        for one in step.collectives:
            end = begin + 20 * MILLI
            messages.append(replace(one, start=begin, end=end, issued=step.backward[1], arrival=begin))
            compute.append((end + late, end + late + MILLI))
            begin = end
        gradients = tuple(replace(one, ready=step.backward[1], accumulated=step.backward[1]) for one in step.gradients)
        last = compute[-1][1]
        ranks.append(
            replace(rank, steps=(replace(step, end=last, collectives=tuple(messages), compute=tuple(compute),
                                         gradients=gradients, update=(last, last)),))
        )  # fmt: skip
    return Trace("woken", tuple(ranks))


@pytest.mark.parametrize("slowness", [(1.0, 1.0), (1.0, 1.5)])
@pytest.mark.parametrize("count", [2, 5])
def test_more_micro_batches_take_what_the_job_takes_with_them(slowness, count):
    job = replace(JOB, slowness=slowness)
    many = replace(job, micro_batches=count)
    assert changed(job, lambda replays: with_micro_batches(replays, count)) == pytest.approx(step_time(many))
    each = replace(job, micro_batches=2, each=True)
    once = changed(each, lambda replays: with_micro_batches(replays, 1))
    assert once == pytest.approx(step_time(replace(each, each=False)))


def test_every_micro_batch_waits_for_its_data():
    job = replace(JOB, stalls=(0.02, 0.02))
    more = changed(job, lambda replays: with_micro_batches(replays, 3)) - step_time(job)
    assert more == pytest.approx(2 * (0.02 + job.forward + len(SIZES) * job.backward))


def test_micro_batches_need_a_backward():
    step = Step(0, 0.0, 1.0, ((0.0, 1.0),))
    _, replays = replayed_trace(Trace("alone", (RankTrace(0, (step,)),)))
    with pytest.raises(DataError, match="does not tell backward"):
        with_micro_batches(replays[0], 2)
    with pytest.raises(DataError, match="which messages carry gradients"):
        with_buckets(replays[0], [12_000_000], float)


def test_a_rank_without_messages_of_gradients_has_no_other_buckets():
    trace = trace_of(JOB)
    silent = trace.ranks[-1]
    steps = tuple(replace(step, collectives=()) for step in silent.steps)
    osf.explain(trace := replace(trace, ranks=(*trace.ranks[:-1], replace(silent, steps=steps))))
    _, replays = replayed_trace(trace, LINE)
    with pytest.raises(DataError, match="carry gradients on every rank"):
        with_buckets(replays[0], SIZES, price)


@pytest.mark.parametrize("job", [JOB, BESIDE, BACKWARDS], ids=["plain", "beside", "backwards"])
def test_fewer_bytes_take_what_the_job_takes_with_them(job):
    """Other collectives are as long as before."""
    _, replays = replayed_trace(
        trace_of(job), osf.Cluster("line", "hockney", fits=(osf.AlphaBeta(2, job.latency, job.per_byte),)), steps=[2]
    )
    small = replace(job, gradients=tuple(size // 4 for size in job.gradients))
    assert with_gradients_of(replays[0], 0.25) == pytest.approx(step_time(small))
    assert with_gradients_of(replays[0], 1.0) == replays[0].traced.duration


def test_prices_of_messages_are_those_given():
    def twice(one, seconds):
        return 2 * seconds if one.collective.elements == SIZES[2] // 4 else None

    stuck = replace(JOB, stuck={1: JOB.latency + JOB.per_byte * SIZES[2]})
    assert changed(JOB, lambda replays: with_prices(replays, twice)) == pytest.approx(step_time(stuck))


def test_one_worker_has_no_messages():
    job = replace(JOB, slowness=(1.0, 1.7, 1.2), stalls=(0.0,) * 3)
    _, replays = replayed_trace(trace_of(job), steps=[2])
    computed = job.forward + len(SIZES) * job.backward + job.update
    assert on_one_worker(replays[0]) == pytest.approx(1.2 * computed)


BUNDLED = [
    pytest.param(one, marks=pytest.mark.long) if one == "tiny-buckets" else one for one in sorted(explained.CASES)
]
TRAFFIC = ("plan", "half", "powersgd", "network-2", "network-10", "workers-half")
"""Remedies that leave computation as it is."""


@pytest.fixture(scope="module", params=[*BUNDLED, *PLANTED])
def found(request):
    if request.param in explained.CASES:
        return kept(explain, load_trace(explained.paths_of(request.param)))
    return osf.explain(trace_of(PLANTED[request.param]))


def test_no_remedy_contradicts_the_causes(found):
    """It saves at most what all causes of communication cost, and no step is shorter than computation."""
    of_network = sum(found.gains[name] for name, cause in CAUSES.items() if cause.of_network)
    waits = found.gains["imbalance"]  # of ranks that are late for some messages, which shorter ones change
    grain = 1e-6 * found.step_time
    for one in found.remedies:
        if one.step_time is None:
            continue
        saved = found.step_time - one.step_time
        assert one.step_time >= found.left - grain, one
        if one.name in TRAFFIC:
            idle = found.gains["host"] if one.name == "plan" else 0.0  # with fewer messages, between waits for them
            assert saved <= of_network + waits + idle + grain, one


def test_a_remedy_of_one_cause_saves_what_it_costs(found):
    steps = {one.name: one.step_time for one in found.remedies}
    for name, cause in CAUSES.items():
        if cause.remedy and cause.remedy[0] in steps and name not in found.alone:
            assert found.step_time - steps[cause.remedy[0]] == pytest.approx(found.gains[name])


def test_what_half_the_bytes_save_agrees_with_what_a_network_twice_as_fast_saves():
    """All messages are gradients."""
    steps = {one.name: one.step_time for one in osf.explain(explained.paths_of("slow-link")).remedies}
    assert steps["half"] == pytest.approx(steps["network-2"], rel=1e-9)


def test_every_priced_remedy_says_what_prices_it(found):
    assert all(one.by == getattr(REMEDIES.get(one.name), "by", "replay") for one in found.remedies)
