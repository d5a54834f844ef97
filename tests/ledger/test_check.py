"""The ledger as a whole: every source within its tolerance, summaries as stated, files of one's own."""

from __future__ import annotations

import io
import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import osfmodel as osf
from osfmodel.engine.bands import quantile
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import decode_measurements, load_measurements, save_measurements
from osfmodel.entities.measurement import Measurement, Source, imported
from osfmodel.ledger import LEDGER
from osfmodel.ledger.check import check, overall
from osfmodel.ledger.results import Checked, Row, UsedOverall
from osfmodel.runtime.training.run import _ratio
from osfmodel.show.checks import Judged
from osfmodel.show.checks.scatter import scatter, scatter_key, show_in_axes, show_scatter
from osfmodel.show.picture import figure_of
from osfmodel.show.table import percent, signed_percent
from tests.commands import invoke
from tests.live.explained import paths_of


@pytest.fixture(scope="module")
def ledger(checked):
    return {one.source: one for one in checked}


def test_every_bundled_measurement_has_a_recipe_and_the_reverse():
    assert set(LEDGER) == set(profiles.names("measurements"))


@pytest.mark.parametrize("source", LEDGER)
def test_a_source_stays_within_its_tolerance(ledger, source):
    """Its tolerance is the error reached, so that a later change cannot silently lose accuracy."""
    one = ledger[source]
    assert len(one.rows) == one.n + one.fitted + one.not_predicted + one.unsteady
    assert one.n > 0
    assert one.passed
    assert all(row.note for row in one.rows if row.predicted is None)
    assert one.fitted_on


def test_a_source_that_predicts_nothing_does_not_pass(ledger):
    """Nor one whose median is above its tolerance."""
    listed = tuple(row._replace(predicted=None) for row in ledger["bcaffe"].rows)
    assert not replace(ledger["bcaffe"], rows=listed).passed
    assert not replace(ledger["bcaffe"], tolerance=0.01).passed


@pytest.mark.parametrize("source", LEDGER)
def test_no_run_of_a_source_is_lost(ledger, source):
    """A row per run (papers: per ratio), and measured times as they stand in the file."""
    runs = load_measurements(source)
    measured = [row.measured for row in ledger[source].rows]
    if source != "papers":
        assert sorted(measured) == sorted(run.measured for run in runs)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=40), st.floats(0, 1))
def test_quantile_is_that_of_numpy(values, part):
    assert quantile(values, part) == pytest.approx(float(np.quantile(values, part)), abs=1e-9)


def test_overall_is_the_medians_over_the_sources_of_times(ledger):
    known = [one for one in ledger.values() if one.n and one.source != "memory"]
    middle, high = overall(list(ledger.values()))
    assert middle == statistics.median(one.median_abs_error for one in known)
    assert high == statistics.median(one.p90_abs_error for one in known)


def own_runs(tmp_path, time, **changes):
    run = {"workload": "resnet50-v100", "cluster": "v100-56gib", "plan": "ddp", "workers": 16,
           "iteration_time_s": [time], **changes}  # fmt: skip
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"schema_version": 1, "kind": "measurements", "name": "mine", "runs": [run]}))
    return path


def test_a_file_of_ones_own(tmp_path):
    predicted = osf.predict(
        osf.load_workload("resnet50-v100"), osf.load_cluster("v100-56gib"), "ddp", 16
    ).iteration_time
    path = own_runs(tmp_path, predicted / 1.1)
    (one,) = check([str(path)])
    assert one.errors == pytest.approx([0.1])
    assert one.passed
    result = invoke(["check", str(path), "--tolerance", "0.05"])
    assert result.exit_code == 1
    assert "10.00%, above its tolerance of 5.00%" in result.stderr
    assert invoke(["check", str(path), "--tolerance", "0.11"]).exit_code == 0


def test_runs_that_cannot_be_predicted_are_listed_with_the_reason(tmp_path):
    (one,) = check([str(own_runs(tmp_path, 0.1, workload="unheard-of"))])
    assert (one.n, one.not_predicted) == (0, 1)
    assert "no workload named 'unheard-of'" in one.rows[0].note


def test_peaks_of_memory_are_no_times(tmp_path):
    """They come back as they were written, have no iteration time, and a file of them is not judged as times."""
    run = Measurement("w", "c", "p", 1, (), peak_bytes=5)
    path = tmp_path / "peaks.json"
    save_measurements("peaks", [run], path)
    assert load_measurements(path) == (run,)
    assert run.measured == 5
    with pytest.raises(DataError, match="no iteration times"):
        _ = run.iteration_time
    with pytest.raises(DataError, match="what is checked here are times"):
        check([str(path)])
    with pytest.raises(DataError, match="peak bytes"):
        replace(run, peak_bytes=0)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"runs": []}, "holds no runs"),
        ({"runs": [{"workload": "w"}]}, "missing required field"),
        ({"runs": [{"workload": "w", "cluster": "c", "plan": "p", "workers": 0, "iteration_time_s": [1]}]}, "run 0"),
        (
            {"runs": [{"workload": "w", "cluster": "c", "plan": "p", "workers": 2, "iteration_time_s": []}]},
            "no samples",
        ),
        ({"runs": [{"workload": "w", "cluster": "c", "plan": "p", "workers": 2, "iteration_time_s": [0]}]}, "no time"),
        ({"layers": []}, "is a workload, but measurements are"),
    ],
)
def test_bad_measurement_files_are_named(tmp_path, document, message):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"schema_version": 1, "name": "bad", **document}))
    with pytest.raises(DataError, match=message) as raised:
        load_measurements(path)
    assert str(path) in str(raised.value)


def test_a_folder_a_trace_or_another_noun_says_what_to_give_instead(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traces = [str(path) for path in paths_of("slow-link")]
    for output in ("job/", "job/runs.json"):
        kind = [] if output == "job/" else ["--kind", "workload"]
        assert invoke(["import", *traces, *kind, "-o", output]).exit_code == 0
    runs = next(Path("job").glob("*-measurements.json"))
    for source, message in [
        ("job", f"osf: job is a folder: give {runs}\n"),
        (traces[0], "looks like a trace of torch.profiler: run `osf import "),
        ("job/runs.json", "osf: job/runs.json: is a workload, but measurements are needed here\n"),
        (str(Path(traces[0]).parent), "is a folder: `osf import "),
    ]:
        result = invoke(["check", source])
        assert result.exit_code == 1
        assert message in result.stderr
    result = invoke(["predict", str(runs), "--cluster", "ring:1us,1Gbps", "--workers", "2"])
    assert result.stderr == f"osf: {runs}: holds measurements, but a workload is needed here\n"
    result = invoke(["import", *traces, "-o", f"{runs}/"])
    assert result.exit_code == 2
    assert f"{runs} is a file: give another name" in result.stderr


def test_unknown_sources_and_plots_are_refused(tmp_path):
    assert "python benchmarks/layouts.py judges" in invoke(["check", "layouts"]).stderr
    with pytest.raises(UsageError, match="unknown source"):
        check(["nowhere"])
    with pytest.raises(UsageError, match="that is a folder: give the measurement files in it"):
        check([str(tmp_path)])
    result = invoke(["check", str(own_runs(tmp_path, 0.1)), "--plot", "picture.gif"])
    assert result.exit_code == 2
    assert "must end in .png or .svg" in result.stderr


def test_measurements_survive_a_file(tmp_path):
    runs = load_measurements("ddl-benchmarks")
    save_measurements("again", runs, tmp_path / "again.json")
    assert load_measurements(tmp_path / "again.json") == runs
    with pytest.raises(DataError, match="2 sources"):
        save_measurements("mixed", [*runs, *load_measurements("bcaffe")], tmp_path / "mixed.json")
    with pytest.raises(DataError, match="not valid JSON"):
        decode_measurements(b"{")


def test_figures_of_sources_are_those_of_their_rows():
    """Two sources with errors 1 to 20 % and -2 to -40 %: in JSON and in the lines under the table."""
    each = [
        Checked(name, tuple(Row(str(i), 1.0, 1 + sign * i / 100, is_time=True) for i in range(1, 21)), "nothing", None)
        for name, sign in (("up", 1), ("down", -2))
    ]
    up, down = (np.arange(1, 21) / 100 * by for by in (1, 2))
    judged = Judged(each, overall(each), False, UsedOverall(2, 0.3, -0.1, 0.8))
    found = judged.document()
    assert [one["median_abs_error"] for one in found["sources"]] == pytest.approx([np.median(up), np.median(down)])
    high = [quantile(sorted(one), 0.9) for one in (up, down)]
    assert [one["p90_abs_error"] for one in found["sources"]] == pytest.approx(high)
    assert [one["worst_abs_error"] for one in found["sources"]] == pytest.approx([0.2, 0.4])
    assert [one["bias"] for one in found["sources"]] == pytest.approx([np.median(up), -np.median(down)])
    console = Console(file=io.StringIO(), width=200)
    judged.show(console)
    shown = " ".join(console.file.getvalue().split())
    assert f"median error {percent(0.1575)}, p90 {percent(sum(high) / 2)}." in shown
    assert f"median error {percent(0.3)}, bias {signed_percent(-0.1)} (medians of the sources); 80% of" in shown


def test_json_is_the_contract():
    result = invoke(["check", "bcaffe", "--format", "json"])
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    assert {"median_abs_error", "p90_abs_error"} <= set(document["overall"])
    (source,) = document["sources"]
    assert {"source", "n", "median_abs_error", "p90_abs_error", "worst_abs_error", "bias", "tolerance",
            "fitted_on"} <= set(source)  # fmt: skip


def live_file(tmp_path, workload, times, **conditions):
    """A file as osf run writes it: plans by turns, each with one sample, workload and cluster beside it."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    osf.save(workload, tmp_path / "workload.json")
    osf.save(osf.Cluster("easy", "ring", between_nodes=osf.Link(1e-3, 1e-8)), tmp_path / "runs/cluster.json")
    turns = [(plan, number, time) for plan, found in times.items() for number, time in enumerate(found, start=1)]
    rows = [
        {"workload": "../workload.json", "cluster": "cluster.json", "plan": plan, "workers": 2,
         "iteration_time_s": [time], "conditions": {"backend": "gloo", "repeat": str(number), **conditions}}
        for plan, number, time in sorted(turns, key=lambda turn: turn[1])
    ]  # fmt: skip
    path = tmp_path / "runs/run.json"
    path.write_text(json.dumps({"schema_version": 1, "kind": "measurements", "name": "run", "runs": rows}))
    return path


@pytest.fixture
def live_workload():
    layers = tuple(osf.Layer(f"l{i}", 1e-3, 2e-3, 600_000) for i in range(8))
    return osf.Workload("live", layers, update_time=1e-3)


def test_plans_of_a_live_run_stand_side_by_side(tmp_path, live_workload):
    """By hand: medians over the repeats, the scaled workload predicted, speed-ups over ddp of either."""
    times = {"ddp": [0.11, 0.10, 0.12], "wfbp": [0.055, 0.05, 0.06], "cap:1MiB": [0.1, 0.1, 0.1]}
    path = live_file(tmp_path, live_workload, times, scale="0.5")
    (one,) = check([str(path)])
    assert (one.n, one.unsteady, one.not_predicted) == (3, 6, 0)
    (beside,) = one.beside
    assert [turns.steady for turns in beside.turns] == [False, False, True]
    assert [turns.plan for turns in beside.turns] == ["ddp", "wfbp", "cap:1MiB"]
    cluster = osf.load_cluster(path.parent / "cluster.json")
    halved = [replace(layer, forward_time=5e-4, backward_time=1e-3) for layer in live_workload.layers]
    half = replace(live_workload, layers=tuple(halved), update_time=5e-4)
    predicted = [osf.predict(half, cluster, plan, 2).iteration_time for plan in times]
    for turns, time, measured in zip(beside.turns, predicted, [0.11, 0.055, 0.1], strict=True):
        assert turns.repeats == 3
        assert turns.measured == pytest.approx(measured)
        assert turns.predicted == pytest.approx(time)
        assert turns.error == pytest.approx(time / measured - 1)
        assert beside.measured_speed_up(turns) == pytest.approx(0.11 / measured)
        assert beside.predicted_speed_up(turns) == pytest.approx(predicted[0] / time)
    assert beside.default.spread == pytest.approx(0.2)


def test_computation_that_differs_from_the_profiles_is_told(tmp_path, live_workload):
    """The run computed 45 ms where the profile has 25: its error is of the load, not of the plan or the network."""
    path = live_file(tmp_path, live_workload, {"ddp": [0.2, 0.2], "wfbp": [0.2, 0.2]}, computation_s="0.045")
    result = invoke(["check", str(path)])
    told = [line for line in result.stderr.splitlines() if "computation itself took" in line]
    assert len(told) == 1, "once, whatever the plans"
    assert "took 1.8 times the profile's on 2 workers (45.00 ms, ../workload.json has 25.00 ms)" in told[0]
    for same in ("0.026", "bad"):
        path = live_file(tmp_path, live_workload, {"ddp": [0.2]}, computation_s=same)
        assert "computation itself" not in invoke(["check", str(path)]).stderr
    faster = live_file(tmp_path, live_workload, {"ddp": [0.2]}, computation_s="0.0125")
    assert "took 0.5 times the profile's" in invoke(["check", str(faster)]).stderr


def test_turns_that_do_not_repeat_are_marked_and_not_counted(tmp_path, live_workload):
    path = live_file(tmp_path, live_workload, {"ddp": [0.1, 0.104], "optimal": [0.09, 0.14]})
    (one,) = check([str(path)])
    assert [row.status for row in one.rows] == ["predicted", "unsteady"] * 2
    assert "repeats differ by more than 5%" in one.rows[1].note
    result = invoke(["check", str(path)])
    assert result.exit_code == 0
    assert "2 runs not counted: repeats differ" in " ".join(result.stdout.split())  # a long path wraps it
    optimal = next(line for line in result.stdout.splitlines() if line.startswith("optimal"))
    assert "55.6%" in optimal
    assert "unsteady" in optimal
    document = json.loads(invoke(["check", str(path), "--json"]).stdout)
    assert [plan["steady"] for plan in document["sources"][0]["side_by_side"][0]["plans"]] == [True, False]


def test_runs_that_kept_the_cores_busy_are_listed_and_not_counted_whatever_their_error(tmp_path, live_workload):
    """A share of 0.9 counts, and runs that do not state theirs; one repeat above it takes its cell out."""
    path = live_file(tmp_path, live_workload, {"ddp": [0.1, 0.101], "optimal": [0.1, 0.101], "wfbp": [0.1, 0.101]})
    runs = list(load_measurements(path))
    stated = {("ddp", 0): "0.90", ("ddp", 1): "0.40", ("optimal", 0): "0.20", ("optimal", 1): "0.91"}
    seen = {}
    for number, run in enumerate(runs):
        share = stated.get((run.plan, seen.setdefault(run.plan, 0)))
        seen[run.plan] += 1
        runs[number] = replace(run, conditions=run.conditions + ((("cpu_share", share),) if share else ()))
    save_measurements("live", runs, path)
    (one,) = check([str(path)])
    status = {(row.label.split()[1], row.status) for row in one.rows}
    assert status == {("ddp", "predicted"), ("wfbp", "predicted"), ("optimal", "unsteady")}
    assert (one.unsteady, one.busy) == (2, 2)
    assert {row.note for row in one.rows if row.status == "unsteady"} == {
        "ranks used more than 90% of the cores: listed, not counted"
    }
    words = " ".join(invoke(["check", str(path)]).stdout.split())
    assert "2 runs not counted: ranks kept the cores busy" in words
    assert "repeats differ" not in words


def test_a_file_of_which_nothing_counts_says_so(tmp_path, live_workload):
    """Without a verdict a tolerance is not met."""
    path = str(live_file(tmp_path, live_workload, {"ddp": [0.1, 0.2]}))
    assert invoke(["check", path]).exit_code == 0
    result = invoke(["check", path, "--tolerance", "0.5"])
    assert result.exit_code == 1
    assert "no run counts: repeats differ by more than 5%" in result.stderr


def test_a_run_says_which_ratios_are_inside_the_spread():
    assert _ratio("ddp", [1.0, 1.02], [1.0, 1.0]) == ", 1.010 times as fast as ddp, which is inside the spread of 2.0%"
    assert _ratio("ddp", [1.0, 1.02], [0.5, 0.51]) == ", 2.000 times as fast as ddp"
    assert _ratio("ddp", [1.0], [1.0]) == ", 1.000 times as fast as ddp"


def test_side_by_side_on_a_terminal_and_in_json(tmp_path, live_workload):
    path = live_file(tmp_path, live_workload, {"ddp": [0.1], "single": [0.125]}, scale="2")
    table = invoke(["check", str(path)]).stdout
    assert "2 workers, computation times 2; speed-up over ddp" in table
    assert "0.800" in table
    document = json.loads(invoke(["check", str(path), "--json"]).stdout)
    (group,) = document["sources"][0]["side_by_side"]
    assert (group["workers"], group["scale"]) == (2, 2)
    assert group["plans"][1]["measured_speed_up"] == pytest.approx(0.8)
    assert group["plans"][1]["predicted_speed_up"] < 1


def test_only_what_was_run_alike_is_compared(tmp_path, live_workload):
    """Nor without the default, nor where DDP formed other buckets than those that would be predicted."""
    (alone,) = check([str(live_file(tmp_path, live_workload, {"wfbp": [0.1], "single": [0.1]}))])
    assert alone.beside == ()
    path = live_file(tmp_path, live_workload, {"ddp": [0.1], "wfbp": [0.1]})
    document = json.loads(path.read_text())
    document["runs"][1]["conditions"]["backend"] = "nccl"
    path.write_text(json.dumps(document))
    assert check([str(path)])[0].beside == ()
    document["runs"][1]["conditions"] = {**document["runs"][0]["conditions"], "buckets_as_planned": "no: compiled"}
    path.write_text(json.dumps(document))
    (one,) = check([str(path)])
    assert one.not_predicted == 1
    (beside,) = one.beside
    assert beside.turns[1].predicted is None
    assert beside.predicted_speed_up(beside.turns[1]) is None
    assert "other buckets" in beside.turns[1].note


def test_a_scale_that_is_no_number_is_told(tmp_path, live_workload):
    (one,) = check([str(live_file(tmp_path, live_workload, {"ddp": [0.1]}, scale="fast"))])
    assert "the scale 'fast' is not a number" in one.rows[0].note


def imported_job(tmp_path):
    """A run whose workload, cluster and time were imported from one trace."""
    source = imported("rank0.json", "under the profiler")
    workload = replace(osf.load_workload("resnet50-v100"), source=source)
    cluster = replace(osf.load_cluster("v100-56gib"), source=source)
    osf.save(workload, tmp_path / "w.json")
    osf.save(cluster, tmp_path / "c.json")
    run = Measurement("w.json", "c.json", "ddp", 16, (0.1,), source=source)
    save_measurements("job", [run], tmp_path / "job.json")
    return workload, cluster, run


def said_of(*paths):
    return invoke(["check", *map(str, paths)]).stdout


def test_a_run_put_together_out_of_itself_is_no_prediction(tmp_path):
    """On the screen, in JSON, and not among the medians over the sources."""
    imported_job(tmp_path)
    path = tmp_path / "job.json"
    (one,) = checked = check([str(path)])
    assert (one.n, one.own, one.self_consistency) == (1, 1, True)
    assert overall(checked) == (None, None)
    text = said_of(path)
    assert text.startswith("Self-check (not a prediction)")
    assert "the runs themselves, with which workload and cluster were imported from one file" in " ".join(text.split())
    assert "Error of predictions" not in text
    assert "fitted: nothing" not in text
    document = json.loads(invoke(["check", str(path), "--json"]).stdout)
    assert document["sources"][0]["self_consistency"] is True


@pytest.mark.parametrize("other", ["workload", "cluster", "not imported"])
def test_a_run_with_something_of_elsewhere_is_a_prediction(tmp_path, other):
    """Nor are figures alike for both saying nothing of where they come from."""
    workload, cluster, run = imported_job(tmp_path)
    if other == "workload":
        osf.save(replace(workload, source=imported("another.json", "")), tmp_path / "w.json")
    elif other == "cluster":
        osf.save(replace(cluster, source=Source("measured with osf bench")), tmp_path / "c.json")
    else:
        osf.save(replace(workload, source=Source()), tmp_path / "w.json")
        osf.save(replace(cluster, source=Source()), tmp_path / "c.json")
        save_measurements("job", [replace(run, source=Source())], tmp_path / "job.json")
    (one,) = check([str(tmp_path / "job.json")])
    assert (one.n, one.own, one.self_consistency) == (1, 0, False)
    assert "fitted: nothing" in said_of(tmp_path / "job.json")
    assert overall([one]) == (one.median_abs_error, one.p90_abs_error)


def test_a_file_of_both_says_so(tmp_path):
    _, _, run = imported_job(tmp_path)
    save_measurements("job", [run, replace(run, workload="resnet50-v100")], tmp_path / "job.json")
    (one,) = check([str(tmp_path / "job.json")])
    assert (one.n, one.own, one.self_consistency) == (2, 1, False)
    assert "from one file are self-consistency" in " ".join(said_of(tmp_path / "job.json").split())


def test_the_picture_tells_predictions_from_self_consistency(tmp_path):
    """A cloud of their own, which every form of the picture names, and hollow in the file."""
    _, _, run = imported_job(tmp_path)
    save_measurements("job", [run, replace(run, workload="resnet50-v100")], tmp_path / "job.json")
    (one,) = check([str(tmp_path / "job.json")])
    found = scatter([one])
    assert [(cloud.own, len(cloud.points)) for cloud in found.clouds] == [(False, 1), (True, 1)]
    assert [cloud.median_abs_error for cloud in found.clouds] == pytest.approx(
        [abs(row.error) for row in one.rows[::-1]]
    )
    name = f"{tmp_path / 'job.json'}, self-consistency, no prediction: 1 run, median error"
    assert name in scatter_key(found).text
    console = Console(file=io.StringIO(), width=300)
    show_scatter(console, found)
    assert name in console.file.getvalue()
    picture = tmp_path / "check.svg"
    pytest.importorskip("matplotlib")
    assert invoke(["check", str(tmp_path / "job.json"), "--plot", str(picture)]).exit_code == 0
    assert "self-consistency" in picture.read_text()
    axes = figure_of((7, 7)).subplots()
    show_in_axes(axes, found)
    labels = [" ".join(text.get_text().split()) for text in axes.get_legend().get_texts()]
    assert any("self-consistency, no prediction (1 run, median error" in label for label in labels)
    assert [len(drawn.get_facecolors()) for drawn in axes.collections[1:]] == [1, 0]


def test_a_tolerance_holds_for_self_consistency_too(tmp_path):
    imported_job(tmp_path)
    assert invoke(["check", str(tmp_path / "job.json"), "--tolerance", "0"]).exit_code == 1
