"""The ablation's rows stand in docs/ledger.md and its pages as the command prints them."""

from __future__ import annotations

import re
import sys

import pytest

from osfmodel.ledger import LEDGER
from osfmodel.ledger.results import TIME
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import ablation

PAGES = [ROOT / "docs/ledger.md", *sorted((ROOT / "docs/ledger").glob("*.md"))]


@pytest.fixture(scope="module")
def effects():
    return ablation.effects()


@pytest.fixture(scope="module")
def assumptions():
    return ablation.assumptions()


def shown(text):
    """The rows below every heading of the ablation's tables in ``text``."""
    heading, rule = ablation.HEAD.split("\n")
    return re.findall(
        r"^\|.*\|$", "\n".join(part.split("\n\n")[0] for part in text.split(f"{heading}\n{rule}\n")[1:]), re.M
    )


@pytest.mark.long
def test_the_ledgers_table_is_what_the_command_prints(effects):
    """The page has some of its rows, as they are printed and in their order."""
    rows = shown(PAGES[0].read_text(encoding="utf-8"))
    assert len(rows) >= 16
    assert rows == [str(row) for row in effects if str(row) in rows]


@pytest.mark.long
def test_the_pages_show_other_variants_as_printed(assumptions):
    found = [row for page in PAGES[1:] for row in shown(page.read_text(encoding="utf-8"))]
    assert len(found) >= 10
    assert set(found) <= {str(row) for row in assumptions}


def test_the_comparison_can_fail():
    text = f"before\n\n{ablation.HEAD}\n| a | b | 1 | 1.0% | 1.0% | 1.0% | +1.0% |\n\n| other | table |\n"
    assert shown(text) == ["| a | b | 1 | 1.0% | 1.0% | 1.0% | +1.0% |"]
    assert shown(text) != [str(ablation.Variant("a", "b", [0.02]))]


@pytest.mark.long
def test_every_source_is_there_with_the_slowdown_on_and_off(effects):
    for source in (name for name, recipe in LEDGER.items() if recipe.compares == TIME):
        told = {
            row.what for row in effects if row.source.partition(",")[0] == source and "compute_slowdown" in row.what
        }
        assert told & {"without `compute_slowdown`", "with `compute_slowdown` = 0.189"}, source


def test_the_update_term_makes_the_bandwidths_agree():
    page = (ROOT / "docs/ledger/ddl-benchmarks.md").read_text(encoding="utf-8")
    rows = list(ablation.bandwidths())
    assert [row for row in rows if row not in page] == []
    spreads = []
    for row in rows:
        cells = [[float(value) for value in cell.split(",")] for cell in row.split("|")[2:-1]]
        spreads.append(max(max(cell) / min(cell) for cell in cells))
    assert spreads[0] < 1.02
    assert spreads[1] > 1.08


@pytest.mark.long
def test_the_ledger_has_the_errors_of_each_file_of_pollux(effects):
    page = (ROOT / "docs/ledger.md").read_text(encoding="utf-8")
    rows = [str(row) for row in effects if row.source.startswith("pollux") and row.what == ablation.JUDGED]
    assert len(rows) == 8
    assert [row for row in rows if row not in page] == []


def test_constants_are_put_back():
    before = ablation.low_bandwidth.STEP
    with ablation.changed(ablation.low_bandwidth, STEP="1us"):
        assert ablation.low_bandwidth.STEP == "1us"
    assert before == ablation.low_bandwidth.STEP
