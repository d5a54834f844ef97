"""The complete examples of the how-to pages, put into the tables, pass all conformance tests of those tables."""

from __future__ import annotations

import inspect
import sys
import types
from itertools import product

import pytest

from osfmodel import CONFIG_TARGETS, COST_MODELS, SOLVERS
from osfmodel.plans import NAMED_PLANS, by_solver
from tests.conformance import test_cost_models, test_solvers, test_targets
from tests.conftest import ROOT
from tests.test_docs import blocks


@pytest.fixture
def example(request, monkeypatch):
    """The names that the Python blocks of docs/how-to/NAME.md define."""
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)
    for block in blocks(ROOT / "docs/how-to" / f"{request.param}.md", "python"):
        exec(compile(block, request.param, "exec"), module.__dict__)
    return module


def put_through(module, parameter, like, **fixtures):
    """Run every test of ``module`` that the entry ``like`` of its table is put through, for the entry "example".

    Returns the names of those tests.
    """
    ran = []
    for name, test in vars(module).items():
        if not name.startswith("test_"):
            continue
        marks = {mark.args[0]: list(mark.args[1]) for mark in getattr(test, "pytestmark", ())}
        if like not in marks.pop(parameter, ()):
            continue
        given = {key: value for key, value in fixtures.items() if key in inspect.signature(test).parameters}
        for values in product(*marks.values()):
            test(**{parameter: "example"}, **dict(zip(marks, values, strict=True)), **given)
        ran.append(name)
    return ran


def listed(module, parameter):
    """The names of the tests of ``module`` that run over its table, as its text says."""
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    return [name for name, test in tests.items() if parameter in inspect.signature(test).parameters]


@pytest.mark.parametrize("example", ["add-a-cost-model"], indirect=True)
def test_the_cost_model(example, monkeypatch):
    monkeypatch.setitem(COST_MODELS, "example", example.tired_ring)
    assert put_through(test_cost_models, "model", "ring") == listed(test_cost_models, "model")
    assert COST_MODELS["example"].meaning


@pytest.mark.parametrize("example", ["add-a-solver"], indirect=True)
def test_the_solver(example, monkeypatch):
    monkeypatch.setitem(SOLVERS, "example", example.idle_flush)
    monkeypatch.setitem(NAMED_PLANS, "example", by_solver(example.idle_flush))
    ran = put_through(test_solvers, "name", "mg-wfbp")
    assert ran == [name for name in listed(test_solvers, "name") if "schedule" not in name]
    assert SOLVERS["example"].meaning


@pytest.mark.parametrize("example", ["add-a-target"], indirect=True)
@pytest.mark.parametrize("subject", test_targets.CASES, ids=lambda subject: "-".join(map(str, subject)))
def test_the_target(example, monkeypatch, subject):
    monkeypatch.setitem(CONFIG_TARGETS, "example", example.elements)
    ran = put_through(test_targets, "name", "ddp", case=test_targets.build(subject))
    assert ran == [name for name in listed(test_targets, "name") if "an_executor" not in name]
    assert CONFIG_TARGETS["example"].meaning
