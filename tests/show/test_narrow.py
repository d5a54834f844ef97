"""Tables on narrow terminals: nothing is cut, and what is left out is named."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

import osfmodel as osf
from osfmodel.ledger import LEDGER
from osfmodel.ledger.results import MEMORY
from osfmodel.show.checks import Judged
from osfmodel.show.predicted import Predicted, show_comparison, show_economics
from tests.kept import judged

pytestmark = pytest.mark.usefixtures("ideal")

PLANS = ("osf:64MiB,5ms", "byte-scheduler", "ddp", "optimal")


def shown(width, show, *arguments, terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    show(console, *arguments)
    return console.file.getvalue()


def compared(workers, plans=PLANS):
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    return osf.compare(workload, cluster, workers, plans)


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (120, ""),
        (80, "samples/s"),
        (70, "samples/s, exposed and buckets"),
        (60, "samples/s, exposed, buckets and speed-up"),
    ],
)
def test_plans_are_whole_and_columns_left_out_are_named(width, missing):
    text = shown(width, show_comparison, compared(16))
    assert all(f"\n{plan} " in text for plan in PLANS)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    said = f"No room for {missing}: widen" in " ".join(text.split()) if missing else "No room" not in text
    assert said, f"{text}\na new column has its place in LEFT_OUT of osfmodel/show/plans.py, and here"


def test_a_pipe_gets_every_column():
    text = shown(60, show_comparison, compared(16), terminal=False)
    assert "samples/s" in text
    assert "No room" not in text


def test_a_sweep_that_is_too_wide_has_a_row_for_each_plan_and_count():
    sweep = Predicted([compared(workers) for workers in (8, 16)])
    wide, narrow = (shown(width, sweep.show).splitlines() for width in (120, 80))
    assert wide[1].split()[0] == "workers"
    assert [line.split()[:2] for line in narrow[2:4]] == [[PLANS[0], "8"], [PLANS[0], "16"]]


@pytest.mark.parametrize(("width", "missing"), [(96, ""), (65, "not predicted")])
def test_check_names_what_it_leaves_out(width, missing):
    (one,) = judged("bcaffe")
    text = " ".join(shown(width, Judged([one], (None, None), True).show).split())
    assert ("No room for not predicted" in text) == bool(missing)
    assert "googlenet-k80-tensors mg-wfbp 1x 64" in text


def test_sources_have_their_own_units():
    (times,), (ratios,) = judged("bcaffe"), judged("papers")
    rows = tuple(row._replace(measured=2**30 * row.measured) for row in times.rows)
    assert LEDGER["memory"].compares == MEMORY
    found = [times, ratios, replace(times, compares=MEMORY, rows=rows)]
    texts = [shown(120, Judged([one], (None, None), True).show) for one in found]
    said = ("427.6 ms", "1.196      1.172", "437.9 MiB")
    assert [[words in text for words in said] for text in texts] == [[one == words for one in said] for words in said]


def test_an_engine_without_error_bands_has_no_column_for_them():
    subject = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe"), 16, ["ddp"]
    text = shown(120, show_comparison, osf.compare(*subject, engine="osf"))
    assert "vs bound  samples/s" in text
    assert "No error bands: " in text


def test_plans_with_the_same_sweet_spot_are_named_together():
    console = Console(file=io.StringIO(), width=200)
    rows = Predicted([compared(workers) for workers in (8, 16)]).plans
    paid = [[row._replace(paid=SimpleNamespace(hours=1.0, gpu_hours=8.0, cost=None)) for row in one] for one in rows]
    show_economics(console, paid, {"wfbp": 8, "single": None, "ddp": None})
    assert "Sweet spot: 8 workers for wfbp; beyond these counts for single and ddp." in console.file.getvalue()
