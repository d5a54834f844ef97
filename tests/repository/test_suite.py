"""The means that keep the suite short: draws, kept results, and the budgets of benchmarks/suite.py."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks import suite
from tests import kept
from tests.conftest import ROOT
from tests.draws import covering

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("sizes", [(17, 4, 3), (2, 2), (5,)])
def test_a_draw_has_every_entry_in_as_few_cases_as_there_are_entries(sizes):
    cases = [frozenset(enumerate(case)) for case in product(*map(range, sizes))]
    chosen = covering(cases, "a test")
    assert frozenset().union(*(cases[place] for place in chosen)) == frozenset().union(*cases)
    assert len(chosen) == max(sizes)
    assert chosen == covering(cases, "a test")


def test_what_a_draw_leaves_out_is_long(pytester):
    """Rows of several parameters stay whole, and tests without the mark run in full."""
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makeini("[pytest]\nmarkers = covering\n  long\n")
    pytester.makepyfile(
        "import pytest\n"
        "rows = pytest.mark.parametrize(('a', 'b'), [(1, 1), (1, 2), (2, 1)])\n"
        "others = pytest.mark.parametrize('c', [1, 2])\n"
        "@pytest.mark.covering\n@rows\n@others\ndef test_drawn(a, b, c): pass\n"
        "@rows\n@others\ndef test_whole(a, b, c): pass\n"
    )
    assert pytester.runpytest("-m", "not long").parseoutcomes() == {"passed": 3 + 6, "deselected": 3}
    assert pytester.runpytest("-m", "long").parseoutcomes() == {"passed": 3, "deselected": 9}


def test_a_result_is_computed_once_and_found_again_by_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "folders", [tmp_path])
    calls = []
    monkeypatch.setattr(kept, "here", {})
    monkeypatch.setattr(kept, "_tune", _noted(calls))
    assert [kept.tuned("w", "c", workers, "ddp") for workers in (2, 4, 2)] == [2, 4, 2]
    kept.here.clear()  # as in another process
    assert kept.tuned("w", "c", 4, "ddp") == 4
    assert calls == [2, 4]
    monkeypatch.setenv("OSFMODEL_ANYTHING", "1")
    kept.tuned("w", "c", 4, "ddp")
    assert calls == [2, 4, 4]


def _noted(calls):
    def noted(workload, cluster, workers, target):
        calls.append(workers)
        return workers

    return noted


def test_each_folder_has_a_budget_and_one_over_it_is_told(capsys):
    tests = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert tests - {"live"} == suite.BUDGETS.keys()
    name, budget = next(iter(suite.BUDGETS.items()))
    assert suite.report([(budget, f"tests/{name}/test_a.py::test_one")], 5) == 0
    assert "OVER" not in capsys.readouterr().out
    rows = [(budget, f"tests/{name}/test_a.py::test_one"), (1.0, f"tests/{name}/test_b.py::test_two[x]")]
    assert suite.report(rows, 5) == 1
    assert "OVER" in capsys.readouterr().out
