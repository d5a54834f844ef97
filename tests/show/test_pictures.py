"""Pictures as data: what they show is what the engine, the trace and the ledger say."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel.cost.clusters import pricing_of
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.entities.timeline import length, outside, union
from osfmodel.entities.trace import RankTrace, Trace
from osfmodel.formats import load_trace
from osfmodel.formats.traces import cluster_of, plan_of, workload_of
from osfmodel.planning.gathering import ReportRequest, counts_around, gather, size_curve
from osfmodel.planning.report import TRACED, TUNED, Scaling, SizeCurve
from osfmodel.show.checks.scatter import scatter
from osfmodel.show.picture import decade_ticks, even_ticks, time_unit
from osfmodel.show.report import coarse, screen
from osfmodel.show.report.gantt import Bar, Gantt, Lane, kinds_of, measured, predicted
from osfmodel.targets import CONFIG_TARGETS
from tests.kept import judged
from tests.live.explained import paths_of
from tests.reports import curve, drawn, many, resnet50, step, trace

pytestmark = pytest.mark.usefixtures("ideal")

RULES = {"forward_overlap": True, "channels": 2, "strategy": "split"}


@pytest.mark.parametrize("plan", ["wfbp", "ddp", "horovod", "optimal", "cap:5MiB"])
def test_a_chart_has_every_span_and_every_byte(plan):
    prediction = osf.predict(osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe"), plan, 16)
    gantt = predicted(prediction)
    spans = sorted((span.start, span.end) for span in prediction.timeline.spans)
    assert sorted((bar.start, bar.end) for lane in gantt.lanes for bar in lane.bars) == spans
    assert [bar.bytes for bar in gantt.collectives] == [bucket.size for bucket in prediction.plan.buckets]
    assert [bar.bucket for bar in gantt.collectives] == list(range(len(prediction.plan.buckets)))
    assert all(bar.ready <= bar.start for bar in gantt.collectives)
    # With a barrier and one channel all that lengthens the iteration is communication beside which nothing computes,
    # or a clock that holds it back.
    waiting = prediction.timeline.exposed_communication - gantt.exposed_time
    assert waiting == pytest.approx(0, abs=1e-9) or plan == "horovod"
    assert waiting > -1e-9


def test_a_chart_of_cut_tensors_and_several_channels():
    """Each collective is that of its own bucket, though pieces of one tensor have the same layers."""
    workload, cluster = osf.load_workload("googlenet-k80"), osf.load_cluster("k80-10gbe-ring")
    comparison = osf.compare(workload, cluster, 16, ["wfbp", "us-byte", "byte-scheduler"], RULES)
    assert any(len(bucket.blocks) == 1 and bucket.blocks[0].offset for one in comparison.predictions
               for bucket in one.plan.buckets)  # fmt: skip
    for prediction in comparison.predictions:
        gantt = predicted(prediction)
        collectives = gantt.collectives
        kinds = {bar.kind for bar in collectives}
        assert kinds == ({"reduce_scatter", "all_gather"} if prediction.plan.split else {"all_reduce"})
        for kind in kinds:
            numbers = [bar.bucket for bar in collectives if bar.kind == kind]
            assert sorted(numbers) == list(range(len(prediction.plan.buckets)))
        for bar in collectives:
            assert bar.bytes == prediction.plan.buckets[bar.bucket].size
            assert bar.layers == tuple(block.layer for block in prediction.plan.buckets[bar.bucket].blocks)
        for lane in gantt.lanes:
            assert all(one.end <= other.start + 1e-12 for one, other in itertools.pairwise(lane.bars))


def test_a_coarse_chart_shows_the_same_time_in_fewer_bars():
    for gantt in resnet50().predicted:
        fewer = coarse(gantt)
        assert fewer.collectives == gantt.collectives
        before, after = gantt.lanes[0].bars, fewer.lanes[0].bars
        assert len(after) < len(before)
        for kind in ("forward", "backward"):
            times = [sum(bar.duration for bar in bars if bar.kind == kind) for bars in (before, after)]
            assert times[0] == pytest.approx(times[1])
        layers = [layer for bar in after if bar.kind == "backward" for layer in bar.layers]
        some = [bar.layers[0] for bar in before if bar.kind == "backward" and bar.duration]
        assert [layer for layer in layers if layer in some] == some


bars_of_a_device = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=60)


@given(bars_of_a_device, st.integers(1, 200))
def test_a_rough_chart_is_as_busy_as_the_fine_one(gaps_and_lengths, cells):
    """In whole microseconds: nothing that is idle becomes busy, and there are no more than two bars a part."""
    bars, at = [], 0
    for gap, size in gaps_and_lengths:
        bars.append(Bar("backward", float(at + gap), float(at + gap + size)))
        at += gap + size
    fine = Gantt("job", (Lane("compute", tuple(bars)),), float(at))
    (lane,) = coarse(fine, cells).lanes
    assert len(lane.bars) <= 2 * cells
    assert sum(bar.busy_time for bar in lane.bars) == pytest.approx(sum(bar.duration for bar in bars))
    assert sum(bar.parts for bar in lane.bars) == len(bars)
    assert all(one.end <= other.start for one, other in itertools.pairwise(lane.bars))
    for bar in lane.bars:
        inside = [one for one in bars if bar.start <= one.start and one.end <= bar.end]
        assert bar.coverage == pytest.approx(sum(one.duration for one in inside) / bar.duration)


def test_collectives_too_short_to_see_are_one_bar_with_all_of_their_bytes():
    workload, cluster = many(400), osf.load_cluster("ring:50us,10Gbps")
    fine = predicted(osf.predict(workload, cluster, "wfbp", 8))
    assert coarse(fine).collectives == fine.collectives  # not unless it is asked for
    rough = coarse(fine, 50)
    assert len(rough.collectives) <= 100
    assert sum(bar.parts for bar in rough.collectives) == 400
    assert sum(bar.bytes for bar in rough.collectives) == workload.gradient_bytes
    assert rough.exposed_time == pytest.approx(fine.exposed_time)
    assert {layer for bar in rough.collectives for layer in bar.layers} == set(workload.gradients.names)
    joined = [bar for bar in rough.collectives if bar.parts > 1]
    assert joined
    assert {(bar.bucket, bar.ready) for bar in joined} == {(None, None)}
    assert all(bar.rate == pytest.approx(bar.bytes / bar.busy_time) for bar in joined)


def test_slivers_on_an_idle_device_do_not_look_busy():
    """Kernels of 1 us every 20 us keep a device busy for a twentieth of the time, in however few bars."""
    slivers = tuple((10 + 20e-6 * number, 10 + 20e-6 * number + 1e-6) for number in range(5000))
    idle = replace(
        step(), start=10.0, end=10.1, compute=slivers, collectives=(), inputs=(), forward=None, backward=None
    )
    gantt = coarse(measured(idle, "job"))
    compute = gantt.lanes[0].bars
    assert len(compute) < 100
    assert sum(bar.busy_time for bar in compute) == pytest.approx(5e-3)
    assert all(bar.coverage < 0.1 for bar in compute)
    assert measured(idle, "job").computing == pytest.approx(0.05)


def test_backward_is_cut_where_buckets_become_ready():
    gantt = coarse(resnet50().predicted[0])
    ends = {bar.bucket: bar.end for bar in gantt.lanes[0].bars if bar.kind == "backward" and bar.bucket is not None}
    for bar in gantt.collectives:
        assert ends[bar.bucket] == pytest.approx(bar.ready)


def test_a_measured_step():
    gantt = measured(step(), "job")
    assert [lane.name for lane in gantt.lanes] == ["compute", "input", "channel 0", "channel 1"]
    assert [bar.kind for bar in gantt.lanes[0].bars] == ["forward", "backward", "compute"]
    first, second = gantt.collectives
    assert (first.bytes, second.bytes) == (4000, 8000)
    assert first.exposed == ()
    assert second.exposed == ((pytest.approx(0.09), pytest.approx(0.13)),)
    assert second.ready == pytest.approx(0.069)
    assert gantt.exposed_time == pytest.approx(0.04)
    assert gantt.end == pytest.approx(0.14)


def test_the_step_of_median_length_stands_for_a_rank_and_the_slowest_rank_is_shown():
    job = trace()
    shown = drawn(many(4), osf.load_cluster("ring:50us,10Gbps"), 4, plans=(), traces=(job,))
    assert [gantt.name for gantt in shown.measured] == ["job, rank 0, step 1", "job, rank 1, step 1"]
    assert ("sizes come from the host", ("trace job",)) in shown.report.notes
    empty = Trace("empty", (RankTrace(2, ()),))
    with pytest.raises(osf.DataError, match="rank 2 of the trace 'empty' has no complete step"):
        drawn(many(4), osf.load_cluster("ring:50us,10Gbps"), 4, plans=(), traces=(empty,))


@cache
def job_of(cluster=None):
    """A traced job on the cluster that its trace holds, or another, with the workload of its trace."""
    seen = load_trace([*paths_of("tiny-buckets")])
    network = cluster_of(seen) if cluster is None else osf.load_cluster(cluster)
    return drawn(workload_of(seen), network, 4, traces=(seen,))


def test_a_traced_job_is_held_against_its_own_buckets():
    shown = job_of()
    names = [one.name for one in shown.report.comparison.predictions]
    assert names[:3] == ["ddp", TUNED, TRACED]
    assert shown.report.shown == 2
    seen = load_trace([*paths_of("tiny-buckets")])
    assert shown.report.comparison.predictions[2].plan == plan_of(seen, shown.report.workload)
    assert len(shown.predicted[2].collectives) == 60
    assert shown.predicted[2].end == pytest.approx(shown.measured[0].end, rel=0.02)
    assert shown.report.why == (explain_trace(seen).verdict,)
    assert [gantt.name for gantt in shown.main] == [*names[:3], *(gantt.name for gantt in shown.measured)]
    assert shown.report.doubts == ()
    saved = 1 - shown.report.tuned.iteration_time / shown.predicted[2].end
    assert saved > 0.6
    assert not shown.report.tuning.improvement
    words = "less time than with the buckets of the trace: by the default of ddp, over which tuning brings nothing."
    assert shown.report.verdict == f"{saved:.0%} {words}"


@pytest.mark.parametrize(
    ("traced", "gain", "words"),
    [
        (1.0, True, "Keep the buckets of the trace: tuning would save less than 0.1%."),
        (0.998, False, "Keep the buckets of the trace: tuning would save less than 0.1%."),
        (2.0, True, "50% less time than with the buckets of the trace. As tuned."),
    ],
)
def test_the_verdict_is_over_the_buckets_that_the_job_has(traced, gain, words):
    shown = job_of()
    tuned = shown.report.tuned
    timeline = SimpleNamespace(name=TRACED, iteration_time=tuned.iteration_time * traced)
    comparison = SimpleNamespace(predictions=(shown.report.default, tuned, timeline))
    tuning = SimpleNamespace(verdict="As tuned.", improvement=gain)
    assert replace(shown.report, comparison=comparison, tuning=tuning).verdict == words


def test_a_step_below_the_bound_of_its_plan_is_pointed_out():
    shown = job_of("ring:100ms,1Gbps")
    bound = shown.report.comparison.predictions[2].lower_bound
    assert all(gantt.end < bound for gantt in shown.measured)
    assert len(shown.report.doubts) == len(shown.measured) == 2
    assert all("less than the bound of as traced" in doubt for doubt in shown.report.doubts)


def test_a_fast_step_of_a_job_that_is_not_fast_is_no_doubt():
    """Its usual steps differ, and one of them takes as long as is predicted."""
    report = job_of("ring:100ms,1Gbps").report
    slower = tuple(replace(seen, longest=seen.longest + 1000) for seen in report.measured)
    assert replace(report, measured=slower).doubts == ()


def test_collectives_that_a_workload_has_as_computation_are_told():
    """The remark is that of osf import: an exposed all-to-all, which no plan changes."""
    job = trace()
    alltoalls = [
        replace(rank, steps=tuple(replace(one, collectives=_last_all_to_all(one)) for one in rank.steps))
        for rank in job.ranks
    ]
    for seen, told in ((job, False), (replace(job, ranks=tuple(alltoalls)), True)):
        request = ReportRequest(many(4), osf.load_cluster("ring:50us,10Gbps"), 4, plans=(), traces=(seen,))
        notes = [note for note, about in gather(request).notes if "other than all-reduces of gradients" in note]
        assert [note[:30] for note in notes] == ["40.00 ms of a step are exposed"] * told


def _last_all_to_all(step):
    return (*step.collectives[:-1], replace(step.collectives[-1], kind="all_to_all"))


def test_buckets_of_another_workload_are_no_plan_and_why_is_said():
    shown = drawn(many(4), osf.load_cluster("ring:50us,10Gbps"), 4, plans=(), traces=(trace(),))
    assert shown.report.shown == 0
    assert [about for note, about in shown.report.notes if note.startswith("the buckets of the trace are not")] == [
        ("trace job",)
    ]


def test_a_bar_cannot_end_before_it_begins():
    with pytest.raises(osf.DataError, match="ends before it begins"):
        Bar("all_reduce", 2.0, 1.0)
    assert Lane("compute", ()).bars == ()


def test_a_bar_is_a_collective_or_looks_like_one_of_the_kinds():
    assert Bar("reduce_scatter", 1.0, 2.0, sends=True).words == "reduce-scatter"
    assert Bar("spread", 1.0, 2.0).words == "spreading sparse entries"
    unheard = Bar("cast_weights", 1.0, 2.0)
    assert (unheard.words, unheard.look) == ("cast-weights", "other")
    assert kinds_of([Gantt("x", (Lane("compute", (unheard,)),), 2.0)]) == ["other"]


def test_a_collective_of_unknown_size_and_time_of_readiness_is_one_as_well():
    """Bars are marked as collectives by their maker, not by known properties."""
    whole = step()
    bare = [replace(one, elements=None, dtype=None, issued=None) for one in whole.collectives]
    gantt = coarse(measured(replace(whole, collectives=tuple(bare)), "job"))
    assert [(bar.kind, bar.bytes, bar.ready) for bar in gantt.collectives] == [("all_reduce", None, None)] * 2
    assert kinds_of([gantt]) == ["forward", "backward", "compute", "input"]


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=8)


@given(st.integers(0, 60), st.integers(0, 30), intervals)
def test_outside_is_the_time_that_no_interval_covers(start, size, parts):
    """Against counting on a grid of whole numbers."""
    busy = union((float(begin), float(begin + some)) for begin, some in parts)
    free = outside(float(start), float(start + size), busy)
    covered = {second for begin, end in busy for second in range(int(begin), int(end))}
    assert length(free) == sum(second not in covered for second in range(start, start + size))
    assert all(start <= begin < end <= start + size for begin, end in free)
    assert {second for begin, end in free for second in range(int(begin), int(end))}.isdisjoint(covered)


@pytest.mark.parametrize("target", ["ddp", "horovod", "runtime"])
@pytest.mark.parametrize("cluster", ["v100-10gbe", "emulated-horovod-4x1gbit"])
def test_the_tuned_chart_is_what_tuning_says(target, cluster):
    workload, network = osf.load_workload("alexnet-pipedream"), osf.load_cluster(cluster)
    shown = drawn(workload, network, 4, target=target, plans=())
    assert [one.name for one in shown.report.comparison.predictions] == [
        "ddp" if target == "runtime" else target,
        TUNED,
    ]
    assert shown.report.tuned.iteration_time == pytest.approx(shown.report.tuning.outcomes[0].tuned_time, rel=1e-12)
    assert shown.report.default.iteration_time == pytest.approx(shown.report.tuning.outcomes[0].default_time, rel=1e-12)


def test_curves_are_predictions():
    shown = resnet50()
    found = curve(shown, Scaling)
    assert found.counts == (2, 4, 8, 16, 32, 64, 128, 256)
    place = found.counts.index(16)
    workload, cluster = shown.report.workload, shown.report.comparison.cluster
    assert [line.name for line in found.lines] == ["ddp", TUNED, "optimal"]
    for line, plan in ((found.lines[0], "ddp"), (found.lines[2], "optimal")):
        assert line.factors[place] == osf.predict(workload, cluster, plan, 16).scaling_factor
    assert found.lines[1].factors[place] == osf.predict(workload, cluster, shown.report.tuned.plan, 16).scaling_factor
    for line in found.lines:
        assert all(factor <= bound * (1 + 1e-9) for factor, bound in zip(line.factors, found.bounds, strict=True))


def test_a_cluster_that_was_measured_with_some_counts_is_drawn_at_these():
    assert counts_around(osf.load_cluster("emulated-4x1gbit"), 4) == (1, 4)
    assert counts_around(osf.load_cluster("v100-10gbe"), 3) == (2, 3, 4, 8)
    shown = drawn(many(3), osf.load_cluster("emulated-4x1gbit"), 4, counts=(1, 2, 4), plans=())
    assert curve(shown, Scaling).counts == (1, 4)  # nothing is known of two workers
    with pytest.raises(osf.CostError, match="no all_reduce table for 2 workers"):
        drawn(many(3), osf.load_cluster("emulated-4x1gbit"), 2, plans=())


def test_the_curve_is_timed_by_the_engine_and_its_best_is_the_best():
    shown = resnet50()
    found = curve(shown, SizeCurve)
    workload, cluster = shown.report.workload, shown.report.comparison.cluster
    for place in (0, 40, found.best, len(found.caps) - 1):
        plan = f"cap:{found.caps[place]}B"
        prediction = osf.predict(workload, cluster, plan, 64)
        assert found.times[place] == prediction.iteration_time
        assert found.buckets[place] == len(prediction.plan.buckets)
    assert found.best_time == pytest.approx(min(found.times), rel=1e-12)
    assert found.best_time <= osf.predict(workload, cluster, "cap:best", 64).iteration_time
    assert found.default == shown.report.default.iteration_time
    assert list(found.caps) == sorted(set(found.caps))


@pytest.mark.parametrize("target", CONFIG_TARGETS)
def test_the_curve_is_of_the_framework_that_the_report_is_about(target):
    """Under its own rules, with its own setting; where it has none that is said."""
    shown = drawn(many(4), osf.load_cluster("k80-10gbe-ring"), 8, target=target, plans=())
    curves = [one for one in shown.curves if isinstance(one, SizeCurve)]
    missing = [about for note, about in shown.report.notes if note.startswith("no curve over bucket sizes")]
    knob = CONFIG_TARGETS[target].size
    assert (len(curves), missing) == ((1, []) if knob else (0, [(target,)]))
    for found in curves:
        assert (found.setting, found.bound) == (knob.name, shown.report.default.lower_bound)
        assert found.default == shown.report.default.iteration_time
        assert found.best_time >= found.bound * (1 - 1e-9)


def test_the_curve_of_horovod_is_predicted_as_its_settings_are():
    workload, cluster = osf.load_workload("alexnet-pipedream"), osf.load_cluster("emulated-horovod-4x1gbit")
    found = curve(drawn(workload, cluster, 4, target="horovod", plans=()), SizeCurve)
    for place in (0, 20, len(found.caps) - 1):
        prediction = osf.predict(workload, cluster, f"horovod:{found.caps[place]}B,1ms", 4)
        assert (found.times[place], found.buckets[place]) == (prediction.iteration_time, len(prediction.plan.buckets))


def test_a_curve_in_elements_has_the_best_number():
    workload, cluster = osf.load_workload("alexnet-pipedream"), osf.load_cluster("v100-10gbe")
    for target in ("deepspeed", "megatron"):
        found = curve(drawn(workload, cluster, 16, target=target, plans=()), SizeCurve)
        assert sum(workload.gradients.sizes) == 4 * found.caps[-1]
        assert found.words(25_000_000) == "25 M elements"
        assert CONFIG_TARGETS[target].size.best(workload, pricing_of(cluster, 16).cost()) in found.caps


def test_nothing_to_send_is_no_curve():
    workload = osf.Workload("still", (osf.Layer("a", 1.0, 1.0, 0),))
    cluster = osf.load_cluster("ring:50us,10Gbps")
    shown = drawn(workload, cluster, 4)
    assert size_curve(shown.report.comparison, "ddp") is None
    assert shown.predicted[0].collectives == ()
    assert [type(one) for one in shown.curves] == [Scaling]
    alone = drawn(many(3), cluster, 1)
    assert alone.report.tuned.iteration_time == alone.report.default.alone


def test_the_cloud_is_what_the_ledger_counts():
    (found,) = judged("pytorch-ddp")
    clouds = scatter([found]).clouds
    assert [(cloud.source, len(cloud.points)) for cloud in clouds] == [("pytorch-ddp", len(found.used))]
    (found,) = judged("emulated-memory")
    (cloud,) = scatter([found]).clouds
    errors = sorted(predicted / measured - 1 for measured, predicted in cloud.points)
    assert errors == pytest.approx(sorted(row.error for row in found.used))


def test_ticks_are_round_and_inside():
    assert even_ticks(0, 131, 5) == [0, 50, 100]
    assert even_ticks(3, 3, 5) == [3]
    assert decade_ticks(0.02, 97, 6) == [0.1, 1, 10]
    for low, high in ((0.3, 2.0), (1e-6, 1e6), (120, 340), (5, 5.2)):
        ticks = decade_ticks(low, high, 5)
        assert 1 <= len(ticks) <= 6
        assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


@pytest.mark.parametrize("width", [12, 40, 47, 83, 100])
@pytest.mark.parametrize("end", [0.4001, 0.3995, 1e-3, 1.9e-3, 3.0, 123.4])
def test_the_axis_ends_where_its_chart_does(width, end):
    """The last time has its unit and no two run into each other."""
    shown = screen._axis(width, end)
    unit, factor = time_unit(end)
    assert len(shown) <= width + 1
    *times, said = shown.split()
    assert said == unit
    values = [float(text) for text in times]
    assert values == sorted(values)
    assert values[-1] == even_ticks(0, end * factor, max(2, width // 10))[-1]
    assert set(values) <= set(even_ticks(0, end * factor, max(2, width // 10)))


def test_plans_that_shard_are_not_compared_with_the_optimum_of_those_that_replicate():
    cluster = osf.load_cluster("ring:50us,10Gbps")
    for target, shown in (("fsdp2", ["fsdp2", "tuned"]), ("ddp", ["ddp", "tuned", "optimal"])):
        report = gather(ReportRequest(many(4), cluster, 4, target=target, plans=()))
        assert [line.name for line in report.scaling.lines] == shown
