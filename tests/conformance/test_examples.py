"""The complete examples of the how-to pages, put into the tables, pass the conformance tests of those tables."""

from __future__ import annotations

import sys
import types

import pytest

from osfmodel import CONFIG_TARGETS, COST_MODELS, SOLVERS
from osfmodel.cluster import COLLECTIVES
from osfmodel.plans import NAMED_PLANS, by_solver
from tests.conformance import test_cost_models, test_solvers, test_targets
from tests.conftest import ROOT
from tests.problems import affine, coarse_table, jumping, min_of_affine
from tests.test_docs import blocks


@pytest.fixture
def example(request, monkeypatch):
    """The names that the Python blocks of docs/how-to/NAME.md define."""
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    for block in blocks(ROOT / "docs/how-to" / f"{request.param}.md", "python"):
        exec(compile(block, request.param, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("example", ["add-a-cost-model"], indirect=True)
def test_the_cost_model(example, monkeypatch):
    monkeypatch.setitem(COST_MODELS, "example", example.tired_ring)
    for workers in test_cost_models.COUNTS:
        for collective in COLLECTIVES:
            test_cost_models.test_prices_are_sane("example", collective, workers)
    test_cost_models.test_one_worker_pays_nothing("example")
    test_cost_models.test_a_fit_of_its_own_prices_finds_them_again("example")
    test_cost_models.test_residuals_show_noise("example")
    test_cost_models.test_without_samples_there_is_no_fit_and_no_price("example")
    assert COST_MODELS["example"].meaning


@pytest.mark.parametrize("example", ["add-a-solver"], indirect=True)
def test_the_solver(example, monkeypatch):
    monkeypatch.setitem(SOLVERS, "example", example.idle_flush)
    monkeypatch.setitem(NAMED_PLANS, "example", by_solver(example.idle_flush))
    test_solvers.test_the_named_plan_is_what_the_solver_gives_unless_it_searches("example")
    for make_cost in (affine, min_of_affine, jumping, coarse_table):
        test_solvers.test_solutions_are_valid_priced_by_the_engine_and_above_bound_and_optimum("example", make_cost)
    test_solvers.test_limits_are_kept_or_refused("example")
    test_solvers.test_the_same_question_gets_the_same_answer("example")
    test_solvers.test_alternating_dtypes_and_nothing_to_send("example")
    assert SOLVERS["example"].meaning


@pytest.mark.parametrize("example", ["add-a-target"], indirect=True)
@pytest.mark.parametrize("case", test_targets.CASES, indirect=True, ids=lambda case: "-".join(map(str, case)))
def test_the_target(example, monkeypatch, case):
    monkeypatch.setitem(CONFIG_TARGETS, "example", example.elements)
    test_targets.test_what_is_realised_sends_everything_once("example", case)
    test_targets.test_projecting_what_was_realised_changes_nothing("example", case)
    test_targets.test_config_is_json_and_text_is_complete("example", case)
    test_targets.test_a_cut_tensor_is_refused("example", case)
    for setting in ({"channels": 2}, {"forward_overlap": True}, {"split": True}):
        test_targets.test_a_plan_beyond_the_framework_is_refused("example", setting, case)
    assert CONFIG_TARGETS["example"].meaning


@pytest.fixture
def case(request):
    """As in the tests of the table."""
    return test_targets.build(request.param)
