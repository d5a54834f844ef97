"""The forms of a report: page, pictures, Chrome trace, terminal."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

import osfmodel as osf
from osfmodel.entities.trace import RankTrace, Step, Trace
from osfmodel.planning.report import Scaling, SizeCurve
from osfmodel.show import picture as plotting
from osfmodel.show.checks.scatter import Cloud, Scatter, scatter_plot
from osfmodel.show.report import Curve, screen
from osfmodel.show.report import files as report_files
from osfmodel.show.report.curves import CURVES
from osfmodel.show.report.gantt import KINDS
from osfmodel.show.report.iteration import LANE
from osfmodel.show.report.page import page
from osfmodel.show.report.screen import show_pictures
from tests.commands import invoke
from tests.conftest import ROOT
from tests.formats import traces
from tests.kept import judged
from tests.live.explained import paths_of
from tests.reports import HOSTILE, Page, assert_fetches_nothing, curve, drawn, hostile, many, resnet50

pytestmark = pytest.mark.usefixtures("ideal", "kept_tuning")

REPORT = ["report", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "64"]


def run(*arguments):
    return invoke(arguments)


def test_the_page_is_whole_and_fetches_nothing():
    text = page(resnet50(), "1.2.3")
    found = Page(text)
    assert found.open == []
    assert max(found.ids.values()) == 1
    assert text == page(resnet50(), "1.2.3")
    assert_fetches_nothing(text)
    for words in ("resnet50-v100", "131 ms", "124 ms", "No schedule", "osfmodel 1.2.3", "Error band", "37.86 MiB"):
        assert words.lower() in text.lower(), words


def test_the_policy_of_the_page_names_its_own_script_and_style():
    text = page(resnet50(), "1")
    policy = next(attributes["content"] for tag, attributes in Page(text).elements if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'")
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_names_cannot_break_out_of_the_page():
    """Every name carries markup, quotes and ends of scripts; 200 tensors, one collective each, stay below 1 MB."""
    text = page(hostile(), "1")
    assert len(text.encode()) < 1e6
    found = Page(text)
    assert found.open == []
    assert Counter(tag for tag, _ in found.elements)["script"] == 1
    assert not [tag for tag, attributes in found.elements if tag == "img" or "onerror" in attributes]
    assert HOSTILE in "".join(found.text)
    assert any(HOSTILE in value for _, attributes in found.elements for value in attributes.values() if value)


def test_every_collective_can_be_reached_and_has_a_row():
    found = Page(page(resnet50(), "1"))
    bars = [attributes for tag, attributes in found.elements if "data-row" in attributes]
    expected = sum(len(gantt.collectives) for gantt in resnet50().predicted)
    assert len(bars) == expected
    assert {bar["data-row"] for bar in bars} <= set(found.ids)
    assert all(bar["role"] == "img" and "all-reduce" in bar["aria-label"].lower() for bar in bars)
    first = [bar for bar in bars if bar["tabindex"] == "0"]
    assert len(first) == len(resnet50().predicted)  # one stop of Tab a chart; arrow keys go on
    drawn = [attributes for tag, attributes in found.elements if attributes.get("data-plan") == "1"]
    assert len(drawn) == 3  # names, drawing and table
    assert all("hidden" in attributes for attributes in drawn)


LARGE = [
    ("many", {"plans": ("wfbp", "byteps")}),
    ("many", {"plans": ("wfbp", "byteps", "cap:1KiB")}),
    *(
        pytest.param(workload, asked, marks=pytest.mark.long)
        for workload, asked in (
            ("densenet201-reconstructed", {"target": "ddp"}),
            ("densenet201-reconstructed", {"target": "deepspeed"}),
            ("densenet201-reconstructed", {"plans": ("wfbp", "byteps")}),
            ("densenet201-reconstructed", {"plans": ("wfbp", "byteps", "cap:64KiB", "horovod", "cap:256KiB")}),
            ("densenet121-cpu", {"plans": ("wfbp", "byteps", "cap:64KiB", "horovod")}),
        )
    ),
]


def test_collectives_are_joined_on_a_page_that_would_be_too_large(monkeypatch):
    whole = page(hostile(), "1")
    monkeypatch.setattr("osfmodel.show.report.page.LARGEST", len(whole.encode()) // 2)
    joined = page(hostile(), "1")
    assert len(joined.encode()) < len(whole.encode())
    bars = [sum("data-row" in attributes for _, attributes in Page(text).elements) for text in (whole, joined)]
    assert bars[0] > bars[1] > 0
    assert ["Too many collectives for a page" in text for text in (whole, joined)] == [False, True]


@pytest.mark.parametrize(("workload", "asked"), LARGE)
def test_a_page_is_below_a_megabyte(workload, asked):
    """With hundreds of collectives under each of several plans; and what was joined for that is said."""
    loaded = many(500) if workload == "many" else osf.load_workload(workload)
    shown = drawn(loaded, osf.load_cluster("ring:50us,10Gbps"), 8, counts=(2, 8), **asked)
    text = page(shown, "1")
    assert len(text.encode()) < 1e6
    found = Page(text)
    assert found.open == []
    bars = [attributes["data-row"] for tag, attributes in found.elements if "data-row" in attributes]
    assert set(bars) <= set(found.ids)
    every = sum(len(gantt.collectives) for gantt in shown.predicted)
    assert every > 700
    joined = len(bars) < every
    assert joined == ("Too many collectives for a page" in text)
    assert "of a measured step" not in text
    assert joined == ("\N{MULTIPLICATION SIGN}" in text)


def events_of(document, kind):
    return [event for event in document["traceEvents"] if event["ph"] == kind]


def test_the_chrome_trace_is_one_that_viewers_open():
    """Object form of the Trace Event Format: X with ts and dur in microseconds, M names processes and threads."""
    document = json.loads(report_files.encoded(hostile(), False, "1"))
    assert document["displayTimeUnit"] == "ms"
    assert {event["ph"] for event in document["traceEvents"]} == {"X", "M"}
    names = {(event["pid"], event["tid"], event["name"]): event["args"] for event in events_of(document, "M")}
    processes = {pid: args["name"] for (pid, _, name), args in names.items() if name == "process_name"}
    charts = [*hostile().predicted, *hostile().measured]
    assert len(processes) == len(charts)
    assert [processes[pid].partition(":")[0] for pid in sorted(processes)] == ["predicted"] * 4 + ["measured"] * 2
    for pid, gantt in enumerate(charts, start=1):
        events = [event for event in events_of(document, "X") if event["pid"] == pid]
        assert len(events) == sum(len(lane.bars) for lane in gantt.lanes)
        last = max(bar.end for lane in gantt.lanes for bar in lane.bars)
        assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(last * 1e6)
        for event in events:
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert (
                names[pid, event["tid"], "thread_name"]["name"] == gantt.lanes[event["tid"] % report_files.THREADS].name
            )
    wire = [event for event in events_of(document, "X") if event["cat"] == "all_reduce" and event["pid"] == 1]
    assert sum(event["args"]["bytes"] for event in wire) == hostile().report.workload.gradient_bytes
    assert {layer for event in wire for layer in event["args"]["layers"]} == set(
        hostile().report.workload.gradients.names
    )


def test_a_packed_trace_is_the_same_and_the_same_each_time():
    packed = report_files.encoded(resnet50(), True, "1")
    assert packed == report_files.encoded(resnet50(), True, "1")
    assert gzip.decompress(packed) == report_files.encoded(resnet50(), False, "1")


@pytest.mark.parametrize("width", [50, 80, 160])
def test_the_terminal_is_not_left(width, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    buffer = io.StringIO()
    show_pictures(Console(file=buffer, force_terminal=True, width=width), hostile())
    lines = re.sub("\x1b\\[[0-9;]*m", "", buffer.getvalue()).splitlines()
    charts = [line for line in lines if re.fullmatch(r"(compute|channel \d|input) [ ░▒▓▄█\d]*", line)]
    assert len(charts) == 2 * 2 + 2 * 4
    assert all(len(line) <= width for line in lines)
    assert "\x1b[3" not in buffer.getvalue()  # no colour; bold and the like stay


def test_the_terminal_tells_hidden_from_exposed_without_colour():
    result = run(*REPORT)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    ddp = next(place for place, line in enumerate(lines) if line.startswith("ddp: 131 ms, 5 collectives"))
    compute, channel, axis = lines[ddp + 1 : ddp + 4]
    assert compute.startswith("compute   ░")
    column = len(compute)  # where computation ends
    assert set(channel[column + 1 :]) <= set("█45")
    assert set(channel[compute.index("▒") : column - 1]) <= set("▄1234 ")
    assert axis.split()[:2] == ["0", "20"]
    assert axis.endswith("ms")


def test_each_suffix_has_its_form(tmp_path):
    pytest.importorskip("matplotlib")
    names = ("r.html", "r.png", "r.svg", "r.trace.json", "r.json.gz")
    result = run(*REPORT, *(word for name in names for word in ("-o", tmp_path / name)))
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert [f"osf: wrote {tmp_path / name}" in result.stderr for name in names] == [True] * 5
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(gzip.decompress((tmp_path / "r.json.gz").read_bytes()))["traceEvents"]
    root = ET.parse(tmp_path / "r.svg").getroot()
    assert root.tag.endswith("svg")
    again = tmp_path / "again.svg"
    assert run(*REPORT, "-o", again).exit_code == 0
    assert again.read_text() == (tmp_path / "r.svg").read_text()


def drawn_panels(shown, monkeypatch):
    """The axes of the figure."""
    figures = []
    monkeypatch.setattr(report_files, "save", lambda figure, path: figures.append(figure))
    report_files.plot_pictures(shown, "x.png")
    return figures[0].axes


def test_a_picture_has_a_panel_for_each_part(tmp_path, monkeypatch):
    """The axes of the figure, their titles, and as many bars as the charts have."""
    pytest.importorskip("matplotlib")
    axes = drawn_panels(resnet50(), monkeypatch)
    assert len(axes) == 4
    assert axes[0].get_title(loc="left") == "ddp: 131 ms, 35.3 ms exposed"
    assert [tick.get_text() for tick in axes[0].get_yticklabels()] == ["channel 0", "compute"]
    numbers = [text.get_text() for text in axes[0].texts]
    assert numbers == ["1", "2", "3", "4", "5"]
    assert list(axes[2].lines[0].get_xdata()) == list(curve(resnet50(), Scaling).counts)
    assert list(axes[3].lines[0].get_ydata()) == pytest.approx(
        [time * 1e3 for time in curve(resnet50(), SizeCurve).times]
    )


def test_every_type_of_curve_is_drawn():
    assert set(CURVES) == set(get_args(Curve))


def test_evidence_that_there_is_none_of_is_no_panel(monkeypatch):
    """A single worker sends nothing: no error band, and no runs behind it. Of several sources one is drawn here."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("tests.reports.judged", lambda *sources: judged("pytorch-ddp") if sources else ())
    banded, bare = (drawn(many(3), osf.load_cluster("ring:50us,10Gbps"), workers, True, plans=()) for workers in (4, 1))
    assert [type(one) for one in banded.curves] == [Scaling, SizeCurve, Scatter]
    assert len(drawn_panels(banded, monkeypatch)) == 2 + 3
    assert [type(one) for one in bare.curves] == [Scaling, SizeCurve]
    assert len(drawn_panels(bare, monkeypatch)) == 2 + 2
    assert "Runs of the sources of the error band" in page(banded, "1")
    assert "Runs of the sources of the error band" not in page(bare, "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "report.pdf"], "must end in .html, .png, .svg, .json, .json.gz"),
        (["-o", "nowhere/report.html"], "there is no folder nowhere"),
        (["--plan", "tunde"], "unknown plan"),
        (["--workers", "0"], "write counts from 1"),
    ],
)
def test_pictures_that_cannot_be_drawn_are_refused(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*(REPORT[:-2] if "--workers" in words else REPORT), *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(Path().iterdir()) == []


def test_of_several_counts_the_last_is_drawn_and_all_are_on_the_curve(tmp_path):
    target = tmp_path / "trace.json"
    arguments = ["report", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "4,16,8", "--plan", "wfbp"]
    assert run(*arguments, "-o", target).exit_code == 0
    told = json.loads(target.read_text())["otherData"]
    assert told["workers"] == 8
    assert told["written_by"] == f"osfmodel {osf.__version__}"
    shown = run(*arguments).stdout
    assert re.findall(r"^ +(\d+)  ddp ", shown, re.MULTILINE) == ["4", "8", "16"]


def test_a_measured_step_stands_beside_the_predictions(tmp_path):
    """Two ranks of a job, the second one slower: both are shown, with what was read of them."""
    job = traces.Job(late=(0, 100), clocks=(0, 0))
    files = [tmp_path / f"rank{rank}.json" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_text(traces.text(job, rank))
    given = [word for file in files for word in ("--trace", file)]
    result = run(*REPORT, "--plan", "wfbp", *given, "-o", tmp_path / "both.json", "-o", tmp_path / "both.html")
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "both.json").read_text())
    names = {
        event["pid"]: event["args"]["name"] for event in events_of(document, "M") if event["name"] == "process_name"
    }
    measured = {pid: name for pid, name in names.items() if name.startswith("measured")}
    assert measured
    sent = [event for event in events_of(document, "X") if event["pid"] in measured and event["cat"] == "all_reduce"]
    assert {event["args"]["bytes"] for event in sent} == {4 * sum(bucket) for bucket in job.buckets}
    assert "measured" in (tmp_path / "both.html").read_text()
    shown = run(*REPORT, "--plan", "wfbp", *given).stdout
    assert shown.count("(measured): ") == len(measured)
    missing = run(*REPORT, "--trace", tmp_path / "nothing.json")
    assert missing.exit_code in (1, 2)
    assert "nothing.json" in missing.stderr


def test_a_traced_job_is_shown_with_its_buckets_its_doubts_and_what_limits_it(tmp_path):
    """On a network so slow that the measured step cannot be: told on the page, on the terminal and on stderr."""
    files = paths_of("tiny-buckets")
    assert run("import", *files, "-o", tmp_path).exit_code == 0
    (workload,) = tmp_path.glob("*workload.json")
    given = [word for file in files for word in ("--trace", file)]
    for cluster, doubted in (("ring:100ms,1Gbps", True), ("ring:50us,10Gbps", False)):
        words = ["report", workload, "--cluster", cluster, "--workers", 4, "--plan", "wfbp", *given]
        written = run(*words, "-o", tmp_path / "r.html")
        assert written.exit_code == 0, written.output
        text = (tmp_path / "r.html").read_text(encoding="utf-8")
        found = Page(text)
        (chosen,) = [at for tag, at in found.elements if tag == "input" and "checked" in at]
        assert chosen["value"] == "2"
        assert [at["data-plan"] for _, at in found.elements if "data-plan" in at and "hidden" not in at] == ["2"] * 3
        assert "Predicted, as traced: " in text
        assert "What limits the traced job: " in text
        assert "The device computes for 31% of it. Predicted" in text  # the rest is communication
        shown = " ".join(run(*words).stdout.split())
        assert "What limits the traced job: Latency: " in shown
        for said in ("".join(found.text), shown, written.stderr):
            assert ("less than the bound of as traced" in said) == doubted


def test_an_idle_step_is_pointed_out():
    """Kernels of 1 us every 20 us: a workload made of that trace would call all of it computation."""
    slivers = tuple((10 + 20e-6 * number, 10 + 20e-6 * number + 1e-6) for number in range(5000))
    idle = Step(0, 10.0, 10.1, slivers)
    job = Trace("idle", (RankTrace(0, (idle,)),))
    shown = drawn(many(4), osf.load_cluster("ring:50us,10Gbps"), 1, plans=(), traces=(job,))
    text = page(shown, "1")
    assert "computes for 5% of it; for 95% it does not, nor communicates" in text
    (chart,) = re.findall(r'<svg class="lanes"[^>]*data-chart="m0">.*?</svg></svg>', text) or [""]
    heights = [float(height) for height in re.findall(r'height="([0-9.]+)" class="bar', chart)]
    assert heights
    assert max(heights) <= 0.1 * LANE


def test_what_if_something_were_otherwise(tmp_path):
    """The options that predict has change the same in pictures, and are said in the title."""
    changes = ["--bandwidth", "x2", "--compute", "x1.5", "--accumulate", "2", "--compression", "bf16"]
    predicted = run("predict", *REPORT[1:], "--plan", "ddp", *changes, "--format", "json")
    row = json.loads(predicted.stdout)["predictions"][0]
    target = tmp_path / "trace.json"
    assert run(*REPORT, *changes, "--plan", "wfbp", "-o", target).exit_code == 0
    spans = [event for event in events_of(json.loads(target.read_text()), "X") if event["pid"] == 1]
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(row["iteration_time_s"] * 1e6)
    shown = run(*REPORT, *changes, "--plan", "wfbp").stdout
    assert "bandwidth x2" in shown.splitlines()[0]
    assert re.search(rf"^ +64  ddp .* {row['scaling_factor']:.3f} ", shown, re.MULTILINE)


def styled(style: str) -> set[str]:
    """The classes that the style gives a fill."""
    rules = re.findall(r"([^{}]*)\{([^{}]*)\}", style)
    return {name for selector, rule in rules if "fill:" in rule for name in re.findall(r"\.(\w+)", selector)}


def test_every_form_draws_every_kind_of_bar():
    style = (ROOT / "osfmodel/show/assets/report.css").read_text(encoding="utf-8")
    assert set(screen.GLYPHS) == set(report_files.FILLS) == set(KINDS)
    assert set(KINDS) - styled(style) == set()
    assert styled(".a, .b.odd { fill: red; } .c { cursor: pointer; }") == {"a", "b", "odd"}  # it can fail


def test_sources_differ_by_more_than_colour():
    """Discs, squares and rings, as many as there are runs up to the most that are drawn."""
    clouds = tuple(Cloud(name, ((0.1, 0.11), (0.2, 0.19)) * 300) for name in "abc")
    found = Page(f"<svg>{scatter_plot(Scatter(clouds)).text}</svg>")
    shapes = Counter((tag, attributes["class"]) for tag, attributes in found.elements if "cloud" in str(attributes))
    assert set(shapes) == {("circle", "cloud c0"), ("rect", "cloud c1"), ("circle", "cloud c2 ring")}
    assert set(shapes.values()) == {200}


def test_without_matplotlib_nothing_is_written(tmp_path, monkeypatch):
    """Neither the picture nor the page requested with it is written."""
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    result = run(*REPORT, "-o", tmp_path / "report.html", "-o", tmp_path / "iteration.png")
    assert result.exit_code == 2
    assert "pictures as files need matplotlib" in result.stderr
    assert list(tmp_path.iterdir()) == []
