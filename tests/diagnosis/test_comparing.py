"""Comparisons of step times: closed forms, symmetries, coverage by simulation, real repeated runs, and readings."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from statistics import median, pvariance

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import osfmodel as osf
from osfmodel.diagnosis.comparing import compare_readings, compare_runs, reading_of
from osfmodel.diagnosis.comparing.readings import COMPARABLE, PRICES, Reading, Timed, cluster_reading
from osfmodel.diagnosis.comparing.sources import computation_of_uses, parts_of_step, times_reading, trace_reading
from osfmodel.diagnosis.comparing.statistics import (
    FASTER,
    OF_SPREAD,
    OF_START,
    SAME,
    SLOWER,
    UNSURE,
    StepSeries,
    exact_change,
    paired_change,
    spread_of,
    step_change,
    variance_of_median,
)
from osfmodel.entities.trace import ShardedUse, Step
from osfmodel.formats.source_text import Text
from tests.conftest import ROOT
from tests.draws import examples, many
from tests.formats import chakra_traces
from tests.formats.inspector_logs import Logged
from tests.formats.inspector_logs import text as inspector_log
from tests.jobs import Job, trace_of

TRACES = ROOT / "tests/formats/data"
TIMES = st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=30)


def series(times):
    return StepSeries(tuple(float(time) for time in times))


def noisy(seed, count, middle=0.1, deviation=0.01, start=0.0):
    """A run of independent steps; ``start``: relative deviation from one start to the next."""
    generator = np.random.default_rng(seed)
    return series(middle * np.exp(generator.normal(0, start) + generator.normal(0, deviation, count)))


@settings(max_examples=examples(15))
@given(TIMES, TIMES, st.floats(0.01, 100))
def test_a_change_has_no_unit(baseline, candidate, scale):
    one = step_change([series(baseline)], [series(candidate)])
    scaled = step_change(*([series(scale * time for time in times)] for times in (baseline, candidate)))
    assert (scaled.low, scaled.median, scaled.high) == pytest.approx(
        (one.low, one.median, one.high), rel=1e-6, abs=1e-9
    )


@given(TIMES, TIMES)
def test_the_sides_change_places(baseline, candidate):
    there = step_change([series(baseline)], [series(candidate)])
    back = step_change([series(candidate)], [series(baseline)])
    assert {SLOWER: FASTER, FASTER: SLOWER}.get(there.verdict, there.verdict) in (back.verdict, SAME, UNSURE)
    assert (1 + there.low) * (1 + back.high) == pytest.approx(1, rel=1e-9)
    assert (1 + there.median) * (1 + back.median) == pytest.approx(1, rel=1e-9)


@given(TIMES, TIMES)
def test_the_median_lies_in_the_interval_and_the_verdict_follows_it(baseline, candidate):
    one = step_change([series(baseline)], [series(candidate)])
    assert -1 < one.low <= one.median <= one.high
    assert (one.verdict == SLOWER) == (one.low > 0)
    assert (one.verdict == FASTER) == (one.high < 0)
    assert one.noise >= 0


@given(TIMES)
def test_a_run_does_not_differ_from_itself(times):
    one = step_change([series(times)], [series(times)])
    assert one.median == 0
    assert one.verdict in (SAME, UNSURE)
    assert one.low == pytest.approx(1 / (1 + one.high) - 1, rel=1e-9)


def test_steps_without_any_noise_leave_the_deviation_between_starts():
    """The closed form: a t distribution with 4 degrees of freedom, twice the variance of a start."""
    one = step_change([series([0.1] * 20)], [series([0.1] * 20)])
    assert one.high == pytest.approx(math.expm1(4.604095 * math.sqrt(2) * OF_START), rel=1e-5)
    assert one.noise == pytest.approx(one.high, rel=1e-9)


def test_the_spread_between_the_fastest_and_the_middle_widens_the_interval():
    times = np.exp(np.repeat([0.0, 0.01], [50, 51]))  # half of the steps 1 % slower: the median is among them
    run = series(times)
    assert spread_of(run) == pytest.approx(0.01)
    spread = 0.01 * (1 + 1 / 101)
    deviation = math.sqrt(OF_START**2 + (OF_SPREAD * spread * (1 + spread / 0.05)) ** 2)
    least = math.expm1(4.604095 * math.sqrt(2) * deviation)
    assert least < step_change([run], [run]).high < 3 * least  # the rest is the variance of the median itself


def test_repeated_runs_take_the_place_of_the_assumption():
    """Five runs a side that hardly differ leave less noise than one, and five that do leave more."""
    alike = [series([0.1 + 0.00001 * run] * 10) for run in range(5)]
    apart = [series([0.1 + 0.005 * run] * 10) for run in range(5)]
    single = step_change(alike[:1], alike[:1])
    assert step_change(alike, alike).noise < single.noise / 2
    assert step_change(apart, apart).noise > 2 * single.noise


def test_three_runs_a_side_without_noise_have_the_closed_form():
    """Student's t with 4 + 2 + 2 degrees of freedom; the assumed variance counts 4 of 8, for 3 runs on both sides."""
    runs = [series([0.1] * 20)] * 3
    deviation = math.sqrt(2 * (4 * OF_START**2 / 8) / 3)
    assert step_change(runs, runs).high == pytest.approx(math.expm1(3.355387 * deviation), rel=1e-5)


def test_the_interval_spans_the_fast_and_the_middle_step():
    """A third of the steps as fast as before, the others 10 % slower: half widths on both ends cancel."""
    one = step_change([series([0.1] * 30)], [series(([0.11, 0.1, 0.11]) * 10)])
    assert one.median == pytest.approx(0.1)
    assert (1 + one.low) * (1 + one.high) == pytest.approx(1.1)
    assert one.verdict == UNSURE


def test_no_difference_holds_on_both_sides_of_the_tolerance():
    for scale in (0.985, 1.015):
        assert step_change([series([0.1] * 20)], [series([0.1 * scale] * 20)], tolerance=0.02).verdict == UNSURE


def test_drift_inside_a_run_counts_as_noise():
    steady, drifting = [0.1, 0.101] * 15, list(np.linspace(0.09, 0.112, 30))
    assert step_change([series(drifting)], [series(drifting)]).noise > 3 * step_change(*[[series(steady)]] * 2).noise


def test_steps_in_a_row_count_less_than_as_many_independent_ones():
    """The same steps, once in blocks of ten and once shuffled."""
    blocks = np.repeat(np.exp(np.random.default_rng(1).normal(0, 0.002, 6)), 10)
    shuffled = np.random.default_rng(2).permutation(blocks)
    in_a_row, independent = (step_change([series(one)], [series(one)]).noise for one in (0.1 * blocks, 0.1 * shuffled))
    assert in_a_row > independent


@pytest.mark.parametrize("times", [(1.0, 1.5, 4.0), (1.0, 1.5, 4.0, 4.5, 7.0)])
def test_the_variance_of_the_median_is_that_of_all_resamples(times):
    """Brute force: each of the n ** n samples with replacement is as likely as any other."""
    medians = [median(sample) for sample in product(times, repeat=len(times))]
    assert variance_of_median(np.array(times)) == pytest.approx(pvariance(medians))


@pytest.mark.parametrize("count", [3, 10, 40])
@many(100, 400)
def test_independent_runs_of_one_job_are_told_apart_in_less_than_one_of_a_hundred(count, many):
    """With as much noise from start to start as is assumed."""
    alarms = sum(
        step_change([noisy(seed, count, start=0.004)], [noisy(seed + 5000, count, start=0.004)]).verdict
        in (SLOWER, FASTER)
        for seed in range(many)
    )
    assert alarms <= many / 100


@many(100, 300)
def test_the_interval_holds_the_planted_change(many):
    """In 98 of 100 at least, for a change of 5 %, and it is found in most."""
    changes = [
        step_change([noisy(seed, 40, deviation=0.004, start=0.003)], [noisy(seed + 999, 40, 0.105, 0.004, 0.003)])
        for seed in range(many)
    ]
    assert sum(one.low <= 0.05 <= one.high for one in changes) >= 0.98 * many
    assert sum(one.verdict == SLOWER for one in changes) >= 0.95 * many


def test_a_disturbed_run_is_no_slower_job():
    """Most steps of the candidate take twice as long, the fastest as long as before."""
    quiet = noisy(1, 40)
    disturbed = series([time * (2 if place % 5 < 3 else 1) for place, time in enumerate(noisy(2, 40).times)])
    one = step_change([quiet], [disturbed])
    assert one.verdict == UNSURE
    assert one.median > 0.2


def test_warm_up_steps_are_left_out():
    run = series([0.9, 0.3, *([0.1] * 20)])
    assert run.settled == (0.1,) * 20
    assert series([0.3, 0.1, 0.1]).settled == (0.1, 0.1)
    assert series([0.11, 0.1, 0.1]).settled == (0.11, 0.1, 0.1)
    assert len(series([5, 4, 3, 2, 1, 0.1]).settled) == 5  # at most a fifth, and one of few


def test_the_tolerance_decides_between_no_difference_and_cannot_tell():
    pair = [series([0.1] * 20)], [series([0.1001] * 20)]
    assert step_change(*pair, tolerance=0.02).verdict == SAME
    assert step_change(*pair, tolerance=0.001).verdict == UNSURE


def test_a_single_published_mean_has_the_noise_of_its_deviation():
    bare, told = StepSeries((0.1,)), StepSeries((0.1,), deviation=0.02)
    assert step_change([told], [told]).noise > step_change([bare], [bare]).noise > 0.02


def test_several_comparisons_share_the_false_alarms():
    pair = [noisy(1, 20)], [noisy(2, 20, 0.105)]
    assert step_change(*pair, comparisons=50).low < step_change(*pair).low


@pytest.mark.parametrize("name", ["emulated-runtime", "emulated-sparse"])
def test_repeats_of_real_runs_are_no_change(name):
    """Sets that the assumed noise was not chosen by: at most 2 of 100 pairs are told apart."""
    groups = {}
    for one in osf.load_measurements(name):
        key = (one.workload, one.cluster, one.plan, one.workers, one.shared_conditions)
        groups.setdefault(key, []).append(StepSeries(one.samples))
    pairs = [pair for runs in groups.values() for pair in combinations(runs, 2)]
    alarms = sum(step_change((a,), (b,)).verdict in (SLOWER, FASTER) for a, b in pairs)
    assert len(pairs) > 100
    assert alarms <= 0.02 * len(pairs)


def test_runs_of_a_job_on_a_busy_machine_are_no_change():
    """Half of 24 runs between two processes on two cores kept busy, as benchmarks/compare_runs.py records."""
    found = json.loads((Path(__file__).parent / "data/busy-runs.json").read_text(encoding="utf-8"))
    for steps in (3, 40):
        runs = [series(times[:steps]) for name in ("job", "again") for times in found[name][::2]]
        verdicts = Counter(step_change((a,), (b,)).verdict for a, b in combinations(runs, 2))
        assert verdicts[UNSURE] + verdicts[SAME] >= 0.98 * verdicts.total()


def test_repeated_runs_show_a_slowdown_of_5_percent_that_single_ones_do_not():
    """30 turns on two quiet cores, where starts of a job differ by 1.6 %, as benchmarks/compare_runs.py records."""
    found = json.loads((Path(__file__).parent / "data/quiet-runs.json").read_text(encoding="utf-8"))
    runs = {name: [series(times) for times in found[name]] for name in found}
    null = Counter(step_change((a,), (b,)).verdict for a, b in combinations([*runs["job"], *runs["again"]][::3], 2))
    assert null[SLOWER] + null[FASTER] <= 0.02 * null.total()
    fives = [slice(start, start + 5) for start in range(0, 26, 2)]
    slower = [step_change(runs["again"][five], runs["5% slower"][five]) for five in fives]
    assert sum(change.verdict == SLOWER for change in slower) >= 0.9 * len(slower)
    little = [step_change(runs["again"][five], runs["2% slower"][five]) for five in fives]
    assert all(change.low <= 0.02 <= change.high for change in little)


def test_predictions_have_no_noise():
    assert exact_change(1.0, 1.0).verdict == SAME
    one = exact_change(2.0, 2.1)
    assert (one.verdict, one.low, one.high, one.noise) == (SLOWER, one.median, one.median, 0)
    assert one.beyond(0.02)
    assert not one.beyond(0.06)
    assert exact_change(2.0, 1.0).verdict == FASTER
    with pytest.raises(osf.DataError, match="zero"):
        exact_change(0.0, 1.0)


def test_pairs_that_agree_show_a_smaller_change_than_pairs_that_do_not():
    sizes = range(1, 10)
    agree = paired_change([float(size) for size in sizes], [1.3 * size for size in sizes])
    assert (agree.verdict, agree.median) == (SLOWER, pytest.approx(0.3))
    differ = paired_change([float(size) for size in sizes], [size * (0.8 + 0.1 * size) for size in sizes])
    assert differ.verdict == UNSURE
    exact = paired_change([1.0, 2.0], [1.1, 2.4], exact=True)
    assert (exact.low, exact.high) == (pytest.approx(0.1), pytest.approx(0.2))


@pytest.mark.parametrize("times", [(), (0.0,), (float("nan"),), (-1.0,), (True,)])
def test_odd_step_times_are_refused(times):
    with pytest.raises(osf.DataError):
        StepSeries(times)


def test_parts_add_up_to_the_change_of_a_usual_step():
    before, after = (trace_reading(trace_of(job), "x") for job in (Job(), Job(slowness=(1.0, 1.5), per_byte=3e-9)))
    found = compare_readings([before], [after])
    parts = found.leading.parts
    assert sum(part.change for part in parts) == pytest.approx(
        osf.explain(trace_of(Job(slowness=(1.0, 1.5), per_byte=3e-9))).step_time
        - osf.explain(trace_of(Job())).step_time
    )
    assert [abs(part.change) for part in parts] == sorted((abs(part.change) for part in parts), reverse=True)
    assert found.verdict == SLOWER
    assert found.regression


OF_FIRST_RANKS = sorted(TRACES.glob("*/*-0.json.gz")) + sorted(TRACES.glob("fsdp/*rank0*"))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.long] * (place % 3 > 0)) for place, path in enumerate(OF_FIRST_RANKS)],
    ids=str,
)
def test_parts_add_up_to_the_step_of_recorded_traces(path):
    found = osf.explain(path)
    assert sum(parts_of_step(found).values()) == pytest.approx(found.step_time, rel=1e-9)
    assert min(parts_of_step(found).values()) >= 0


def test_computation_belongs_to_the_innermost_module():
    """The root's use spans those of its blocks; computation outside of all uses belongs to none."""
    uses = (ShardedUse("", False, 1.0, 9.0), ShardedUse("a", False, 2.0, 4.0), ShardedUse("b", False, 5.0, 6.0))
    step = Step(0, 0.0, 10.0, compute=((0.5, 3.0), (3.5, 8.0)), uses=uses)
    assert dict(computation_of_uses(step)) == {"b": 1.0, "a": 1.5, "root": pytest.approx(4.0)}


def test_the_part_that_was_planted_comes_first():
    job, stalled = Job(), Job(stalls=(0.05, 0.05))
    assert osf.compare_runs(trace_of(job), trace_of(stalled)).leading.parts[0].name == "input"


def test_collectives_are_matched_although_their_groups_have_other_names():
    """A process group's name may differ from run to run."""
    before = trace_reading(trace_of(Job()), "x")
    renamed = [type(use)(use.kind, "other", *_rest(use)) for use in before.collectives]
    after = Reading("y", "trace", before.subjects, tuple(renamed))
    (one,) = compare_readings([before], [after]).collectives
    assert one.change == 0
    assert one.baseline.count == 10
    assert one.baseline.bytes == 40_000_000
    # Ten messages of 4 MB on a link of 1 ns a byte and 0.1 ms each; bus bandwidth of two ranks is bytes over time.
    assert one.baseline.bandwidth == pytest.approx(one.baseline.bytes / one.baseline.time)


def _rest(use):
    return use.workers, use.count, use.bytes, use.time, use.bandwidth


def test_conditions_that_differ_are_listed():
    one = osf.compare_runs(trace_of(Job()), trace_of(Job(buckets=(tuple(range(5)), tuple(range(5, 10))))))
    assert [(fact.name, fact.baseline[:2], fact.candidate[:2]) for fact in one.facts] == [
        ("gradient buckets", "10", "2,")
    ]


def test_clusters_in_words_are_compared_exactly():
    before, after = (cluster_reading(osf.load_cluster(name), name) for name in ("ring:10us,10Gbps", "ring:10us,5Gbps"))
    found = compare_readings([before], [after])
    assert {one.how for one in before.subjects} == {PRICES}
    large = next(one for one in found.subjects if one.name == "all_reduce, 8 workers, from 1.000 MiB")
    assert large.change.verdict == SLOWER
    assert 0.8 < large.change.low <= large.change.high <= 1  # half the bandwidth, and the same latency
    use = next(
        one for one in before.collectives if one.kind == "all_gather" and one.workers == 8 and one.bytes == 4**15
    )
    assert use.bandwidth == pytest.approx(1.25e9, rel=0.01)  # that of the link, as nccl-tests defines it


def test_runs_of_a_file_are_grouped_by_plan(tmp_path):
    runs = [
        osf.Measurement("w", "c", plan, 4, tuple(noisy(seed, 20, middle).times), conditions=(("repeat", str(seed)),))
        for plan, middle in (("ddp", 0.1), ("optimal", 0.08))
        for seed in range(3)
    ]
    slower = [
        osf.Measurement("w", "c", one.plan, 4, tuple(1.1 * time for time in one.samples), conditions=one.conditions)
        if one.plan == "optimal"
        else one
        for one in runs
    ]
    for name, held in (("a", runs), ("b", slower)):
        osf.save_measurements(name, held, tmp_path / f"{name}.json")
    found = osf.compare_runs(tmp_path / "a.json", tmp_path / "b.json")
    assert [(one.name, one.change.verdict, one.change.runs) for one in found.subjects] == [
        ("optimal, 4 workers", SLOWER, (3, 3)),
        ("ddp, 4 workers", SAME, (3, 3)),
    ]
    assert found.leading.change.median == pytest.approx(0.1)


def test_several_baselines_are_pooled():
    readings = [Reading(f"{run}", "times", (Timed("step", (noisy(run, 20),)),)) for run in range(5)]
    one = compare_readings(readings[:4], readings[4:])
    assert one.leading.change.runs == (4, 1)
    assert one.baselines == ("0", "1", "2", "3")
    assert one.leading.change.noise < compare_readings(readings[:1], readings[4:]).leading.change.noise


@pytest.mark.parametrize(
    ("content", "seconds"),
    [
        ("0.1\n0.2\n", [0.1, 0.2]),
        ("# steps\nstep_time_ms\n100\n200 # slow\n\n", [0.1, 0.2]),
        ("step,loss,step_time_s\n0,1.5,0.1\n1,1.4,0.2\n", [0.1, 0.2]),
        ("step;iteration time (ms)\n0;100\n1;200\n", [0.1, 0.2]),
        ('{"config": 1}\n{"step": 1, "step_time_s": 0.1}\n{"step": 2, "step_time_s": 0.2}\n', [0.1, 0.2]),
        ('{"schema_version": 1}\n{"time": 4, "step_time_us": 1e5}\n{"time": 5, "step_time_us": 2e5}\n', [0.1, 0.2]),
    ],
)
def test_step_times_are_read_with_their_unit(content, seconds, tmp_path):
    (run,) = times_reading(Text("x", content), "x").subjects[0].runs
    assert run.times == pytest.approx(seconds)
    path = tmp_path / "times.log"
    path.write_text(content)
    assert reading_of(path).subjects[0].runs[0].times == pytest.approx(seconds)


def test_a_column_tells_runs_apart():
    reading = times_reading(Text("x", "run,step_time_s\na,0.1\nb,0.3\na,0.2\n"), "x")
    assert [run.times for run in reading.subjects[0].runs] == [(0.1, 0.2), (0.3,)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no step times"),
        ("0.1\nfast\n", "line 2: is not a step time"),
        ("0.1\n-0.2\n", "line 2: is not a step time: seconds above zero"),
        ("0.1\n0\n", "line 2"),
        ("0.1\nnan\n", "line 2"),
        ("0.1\ninf\n", "line 2"),
        ('{"time": 1764093600.1}\n', "line 1: is not a step time: .* no time of day"),
        ("step,loss\n0,1.5\n", "line 1: has no column of step times"),
        ("step,step_time_s\n0,0.1\n1\n", "line 3: has 1 columns"),
        ('{"step_time_s": 0.1}\n{"step_time_s": "x"}\n', "line 2: step_time_s is not a number"),
        ('{"step_time_s": 0.1}\n{"step\n', "line 2: is not a JSON object"),
        ('{"step_time_s": 0.1}\n[1]\n', "line 2: is not a JSON object"),
        ('{"a": 1}\n{"b": 1}\n', "has no step times"),
    ],
)
def test_damaged_step_times_are_a_line_with_the_place(content, said):
    with pytest.raises(osf.DataError, match=said):
        times_reading(Text("x", content), "x")


def test_predictions_are_read_from_each_command(tmp_path):
    """The documents of osf predict, osf tune and osf scale, and sweeps of them."""
    entry = {"workers": 8, "compute_time_s": 0.1, "predictions": [
        {"plan": "ddp", "iteration_time_s": 0.15, "exposed_communication_s": 0.04}]}  # fmt: skip
    documents = {
        "ddp, 8 workers": {"schema_version": 1, **entry},
        "ddp, 8 workers ": {"schema_version": 1, "sweep": [entry]},
        "fsdp2, 8 workers": {"schema_version": 1, "points": [{"workers": 8, "strategy": "fsdp2", "step_time_s": 0.15}]},
        "ddp default, 8 workers": {
            "schema_version": 1, "target": "ddp", "workers": 8, "plan": {"buckets": []},
            "default_iteration_time_s": 0.15, "tuned_iteration_time_s": 0.14,
        },
    }  # fmt: skip
    for name, document in documents.items():
        path = tmp_path / "result.json"
        path.write_text(json.dumps(document))
        first = reading_of(path).subjects[0]
        assert first.name == name.strip()
        assert first.runs[0].times == (0.15,)
        assert sum(first.parts.values()) in (0, pytest.approx(0.15))
    (tmp_path / "bad.json").write_text('{"schema_version": 1, "predictions": [{"plan": "ddp"}], "compute_time_s": 1}')
    with pytest.raises(osf.DataError, match=r"bad\.json: iteration_time_s is None"):
        reading_of(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("emulated-ddp", "runs"), ("v100-10gbe", "cluster"), ("resnet50-v100", "workload"), ("ring:1us,1Gbps", "cluster")],
)
def test_bundled_profiles_are_read_by_name(name, kind):
    assert reading_of(name).kind == kind
    assert kind in COMPARABLE


def test_files_of_different_kinds_are_refused():
    with pytest.raises(osf.UsageError, match="v100-10gbe holds prices of collectives, resnet50-v100 the computation"):
        osf.compare_runs("v100-10gbe", "resnet50-v100")


def test_nothing_in_common_is_refused():
    readings = [
        Reading(name, "runs", tuple(Timed(plan, (noisy(1, 5),)) for plan in plans))
        for name, plans in (("a", ("x", "y")), ("b", ("z", "w")))
    ]
    with pytest.raises(osf.UsageError, match="a and b share nothing: one has x and y, the other z and w"):
        compare_readings(readings[:1], readings[1:])


def test_a_slow_tail_is_told():
    """The median stays, a quarter of the steps take three times as long."""
    quiet = [0.1, 0.1001] * 20
    tail = [time * (3 if place % 4 == 0 else 1) for place, time in enumerate(quiet)]
    before, after = (Reading("x", "times", (Timed("step", (series(times),)),)) for times in (quiet, tail))
    found = compare_readings([before], [after])
    assert any("the mean of all steps changed by +46%" in remark for remark in found.remarks)
    assert median(tail) == pytest.approx(median(quiet), rel=0.01)


def test_files_of_a_job_are_compared_as_osf_import_reads_them(tmp_path):
    """A folder of NCCL Inspector's logs, and a file of Chakra."""
    for name, logged in (("before", Logged()), ("after", replace(Logged(), rate=Logged().rate / 2))):
        (tmp_path / name).mkdir()
        for rank in range(logged.ranks):
            (tmp_path / name / f"rank{rank}.log").write_text(inspector_log(logged, rank))
    found = compare_runs(tmp_path / "before", tmp_path / "after")
    assert found.verdict == SLOWER
    path = tmp_path / "rank0.et"
    path.write_bytes(chakra_traces.content(chakra_traces.Traced()))
    assert reading_of(path).kind == "cluster"


@pytest.mark.parametrize("name", ["times.jsonl", "prediction.json"])
def test_numbers_beyond_any_time_are_refused(tmp_path, name):
    huge = "9" * 401
    path = tmp_path / name
    one = f'{{"step_time_s": {huge}}}\n' * 2
    many = f'{{"schema_version": 1, "predictions": [{{"plan": "ddp", "iteration_time_s": {huge}}}]}}'
    path.write_text(one if name.endswith("l") else many)
    with pytest.raises(osf.DataError, match=f"{name}.*time"):
        reading_of(path)
