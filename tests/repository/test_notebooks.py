"""The notebooks of the docs run from a clean environment, and show what they then give."""

from __future__ import annotations

import json

import pytest

from tests.conftest import ROOT
from tests.notebooks import FOLDER, NOTEBOOKS, executed, outputs


def test_there_are_notebooks():
    stems = {path.stem for path in NOTEBOOKS}
    assert stems >= {"predict-and-tune", "scale-and-sweep", "layout-and-settings", "explain-and-compare"}


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_the_outputs_that_it_shows(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert list(outputs(executed(path))) == list(outputs(stored)), f"python -m tests.refresh_docs {path}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_was_run_in_order_and_nothing_warned(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [output for cell in cells for output in cell["outputs"] if output.get("name") == "stderr"] == []
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_a_notebook_that_shows_something_else_is_found():
    stored = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    before = list(outputs(stored))
    first = next(cell for cell in stored["cells"] if cell.get("outputs"))
    first["outputs"][0]["data"]["text/plain"] = ["other"]
    assert list(outputs(stored)) != before


def test_traces_of_notebooks_are_recorded_ones():
    recorded = ROOT / "tests/formats/data/explained"
    traces = sorted((FOLDER / "traces").iterdir())
    assert traces
    assert [path.name for path in traces if path.read_bytes() != (recorded / path.name).read_bytes()] == []
