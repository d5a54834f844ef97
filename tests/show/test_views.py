"""Views of nouns: documents are those of the command line, rows have units, HTML escapes every name and stays small."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from functools import cache

import pytest

import osfmodel as osf
from osfmodel.entities.display import VIEWED
from osfmodel.show.views import SHOWN, VIEWS
from tests.commands import invoke
from tests.live.explained import paths_of
from tests.reports import HOSTILE, Page, explanation, hostile_explanation, many

WORKLOAD, CLUSTER = "alexnet-pipedream", "v100-10gbe"
SUBJECT = [WORKLOAD, "--cluster", CLUSTER, "--workers"]
GRID = {"workloads": WORKLOAD, "clusters": CLUSTER, "workers": [2, 4], "plans": ["ddp", "wfbp"]}


def printed(*words: object) -> str:
    """The output of a command without its warnings; one that reports a regression has exit code 1."""
    done = invoke(list(map(str, words)))
    assert done.exit_code in (0, 1), done.output
    return done.stdout


@cache
def subject() -> tuple[osf.Workload, osf.Cluster]:
    """A bundled workload and a bundled cluster."""
    return osf.load_workload(WORKLOAD), osf.load_cluster(CLUSTER)


@cache
def results() -> dict[str, tuple[object, list[str]]]:
    """Results of the library, each with the command that writes the same."""
    workload, cluster = subject()
    traces = list(map(str, paths_of("tiny-buckets")))
    return {
        "Prediction": (osf.predict(workload, cluster, "ddp", 16), ["predict", *SUBJECT, "16", "--plan", "ddp"]),
        "Comparison": (
            osf.compare(workload, cluster, 16, ["ddp", "wfbp", "optimal"]),
            ["predict", *SUBJECT, "16", "--plan", "ddp", "--plan", "wfbp", "--plan", "optimal"],
        ),
        "Tuning": (osf.tune(workload, cluster, [16, 32]), ["tune", *SUBJECT, "16,32"]),
        "ScaleCurve": (osf.scale(workload, cluster, [8, 16]), ["scale", *SUBJECT, "8,16"]),
        "Explanation": (explanation(), ["explain", *traces]),
        "RunComparison": (osf.compare_runs(traces[0], traces[1]), ["compare", *traces[:2]]),
    }


@cache
def nouns() -> dict[str, object]:
    """A noun of every type that has views."""
    workload, cluster = subject()
    found = {name: one for name, (one, _) in results().items()}
    return {
        **found,
        "Workload": workload,
        "Cluster": cluster,
        "Plan": found["Prediction"].plan,
        "Sweep": osf.sweep(GRID),
    }


def test_every_type_with_views_has_their_methods_and_every_type_with_methods_has_views():
    assert {type(one) for one in nouns().values()} == set(VIEWS)
    public = {getattr(osf, name) for name in osf.__all__ if isinstance(getattr(osf, name), type)}
    assert {one for one in public if getattr(one, "to_dict", None) is VIEWED[0]} == set(VIEWS)


@pytest.mark.parametrize("name", ["Comparison", "Explanation", "Prediction", "RunComparison", "ScaleCurve", "Tuning"])
def test_documents_and_rows_are_those_of_the_command_line(name):
    one, words = results()[name]
    assert json.loads(json.dumps(one.to_dict())) == json.loads(printed(*words, "--format", "json"))
    rows = list(csv.DictReader(io.StringIO(printed(*words, "--format", "csv"))))
    written = [{key: "" if value is None else str(value) for key, value in row.items()} for row in one.to_records()]
    assert written == rows


def test_the_document_of_a_sweep_is_that_of_the_command_line(tmp_path):
    table = tmp_path / "sweep.jsonl"
    osf.sweep(GRID, str(table))
    found = osf.load_sweep(table)
    assert json.loads(json.dumps(found.to_dict())) == json.loads(printed("sweep", table, "--format", "json"))
    assert found.to_records() == list(found)
    assert list(replace(osf.sweep(GRID), held=()).to_frame().columns) == list(found.to_frame().columns)


@pytest.mark.parametrize("name", ["Workload", "Cluster", "Plan"])
def test_the_document_of_a_profile_is_its_file(name, tmp_path):
    one = nouns()[name]
    osf.save(one, tmp_path / "file.json")
    assert one.to_dict() == json.loads((tmp_path / "file.json").read_text(encoding="utf-8"))


def test_a_prediction_of_a_what_if_says_so():
    workload, cluster = subject()
    what_if = osf.WhatIf(compute=2.0)
    made = osf.compare(what_if.of_workload(workload, 8), cluster, 8, ["ddp"]).under(what_if, workload.compute_time)
    assert made.predictions[0].to_dict() == made.to_dict()
    assert made.to_dict()["what_if"] == what_if.document


def test_rows_are_one_for_each_layer_bucket_prediction_and_so_on():
    found = {name: one.to_records() for name, one in nouns().items()}
    workload, _ = subject()
    plan, tuned, curve = (nouns()[name] for name in ("Plan", "Tuning", "ScaleCurve"))
    assert [row["layer"] for row in found["Workload"]] == [layer.name for layer in workload.layers]
    assert [row["bytes"] for row in found["Plan"]] == [bucket.size for bucket in plan.buckets]
    assert [row["plan"] for row in found["Comparison"]] == ["ddp", "wfbp", "optimal"]
    assert [row["plan"] for row in found["Prediction"]] == ["ddp"]
    assert [row["workers"] for row in found["Tuning"]] == [one.workers for one in tuned.outcomes]
    assert [row["workers"] for row in found["ScaleCurve"]] == [one.workers for one in curve.points]
    assert len(found["Explanation"]) == len(explanation().buckets)
    assert len(found["Sweep"]) == 4


def test_figures_of_a_cluster_are_one_row_for_each_size_that_was_measured():
    one = osf.load_cluster("azure-a100-hdr")
    measured = [
        (table.workers, size, time) for table in one.tables for size, time in zip(table.sizes, table.times, strict=True)
    ]
    rows = [row for row in one.to_records() if row["part"] == "tables"]
    assert [(row["workers"], row["bytes"], row["time_s"]) for row in rows] == measured
    (link,) = osf.load_cluster("ring:50us,10Gbps").to_records()
    assert link["part"] == "between_nodes"
    assert link["latency_s"] == pytest.approx(50e-6)


@pytest.mark.parametrize("name", sorted(one.__name__ for one in VIEWS))
def test_frames_have_the_same_rows_in_pandas_and_polars(name):
    import pandas
    import polars

    one = nouns()[name]
    rows = one.to_records()
    assert len({tuple(row) for row in rows}) == 1
    frame = one.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert (list(frame.columns), len(frame)) == (list(rows[0]), len(rows))
    assert polars.DataFrame(rows, infer_schema_length=None).columns == list(frame.columns)


def test_columns_of_times_and_sizes_say_their_unit():
    frame = subject()[0].to_frame()
    assert frame["backward_time_s"].sum() == pytest.approx(subject()[0].backward_time)
    assert {"forward_time_s", "ready_s", "gradient_bytes"} <= set(frame.columns)


def test_without_pandas_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(osf.UsageError) as raised:
        subject()[0].to_frame()
    assert str(raised.value) == "to_frame() needs pandas: pip install 'osfmodel[frames]'"


def hostile() -> list[object]:
    """Nouns with names that would break out of a page."""
    workload, cluster = many(60, f"w {HOSTILE}", "{} " + HOSTILE), replace(subject()[1], name=f"c {HOSTILE}")
    made = osf.compare(workload, cluster, 8, ["ddp"])
    found = results()["RunComparison"][0]
    sweep = replace(osf.sweep(GRID), name=HOSTILE)
    records = [{**row, "plan": f"{place} {HOSTILE}"} for place, row in enumerate(sweep)]
    return [
        workload,
        cluster,
        made,
        made.predictions[0],
        made.predictions[0].plan,
        osf.tune(workload, cluster, 8),
        osf.scale(workload, cluster, [8]),
        hostile_explanation(),
        replace(found, baselines=(HOSTILE,), remarks=(HOSTILE,)),
        replace(sweep, held=records, remarks=(HOSTILE,)),
    ]


def test_no_name_breaks_out_of_the_html():
    tags = {"div", "b", "i", "table", "thead", "tbody", "tr", "th", "td", "pre", "code"}
    for one in hostile():
        page = Page(one._repr_html_())
        assert page.open == [], one
        assert {tag for tag, _ in page.elements} <= tags, one
        assert {key for _, attributes in page.elements for key in attributes} <= {"class", "style"}, one
        assert "alert(1)" in "".join(page.text), one


def test_a_huge_workload_is_cut_and_says_so():
    one = many(5000)
    text = one._repr_html_()
    assert text.count("<tr") == 1 + SHOWN
    assert "4,980 more rows: to_dict() has all." in text
    assert len(text) < 20_000
    assert "more row" not in many(SHOWN)._repr_html_()


def test_the_html_says_the_same_as_the_terminal():
    one, words = results()["Comparison"]
    said = "".join(f" {text} " for text in Page(one._repr_html_()).text)
    table = printed(*words).splitlines()
    for line in table[:5]:
        assert all(word in said for word in line.split())
    tuned, words = results()["Tuning"]
    assert tuned.verdict in " ".join(printed(*words).split())
    assert tuned.verdict in "".join(Page(tuned._repr_html_()).text)
