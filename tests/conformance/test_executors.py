"""Every row of EXECUTORS, the moment it is listed; and that no other module compares with an executor's name."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields, replace
from importlib import import_module

import pytest

from osfmodel import Layer, Plan, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.strategies.holdings import BUCKETS, GRADIENTS
from osfmodel.entities import executors
from osfmodel.entities.effects import COUNTED, NO_EFFECTS, REPLAYED_ON_CPU, Effects
from osfmodel.entities.errors import UsageError
from osfmodel.entities.executors import EXECUTORS, executor_of
from osfmodel.entities.plan import in_one
from osfmodel.runtime.horovod import run as horovod_bench
from osfmodel.runtime.training import run as training_run
from osfmodel.targets import CONFIG_TARGETS
from tests.commands import invoke
from tests.repository.test_architecture import modules

ROWS = list(EXECUTORS.values())
RUNNING = [row for row in ROWS if row.run is not None]
EVERY = Effects(**{field.name: 0.5 for field in fields(Effects)})
SMALL = Workload("small", (Layer("a", 1, 2, 400, peak_bytes=800), Layer("b", 1, 2, 200, peak_bytes=400)))
SMALL = replace(SMALL, state_bytes=600)
SMALL_PLAN = in_one(SMALL)
PRICING = replace(Pricing.of(AffineCost(((0.5, 0.01),)), workers=2), effects=EVERY, in_flight=3)


def named(rows):
    return pytest.mark.parametrize("row", rows, ids=[row.name for row in rows])


@named(ROWS)
def test_a_row_of_executors_is_found_by_its_conditions(row):
    assert EXECUTORS[row.name] is row
    assert row.called
    assert "\n" not in row.summary
    assert executor_of(row.conditions).effects is row.effects
    assert executor_of({"executor": row.name}) is row


@named(ROWS)
@pytest.mark.parametrize("more", [{}, REPLAYED_ON_CPU, REPLAYED_ON_CPU | COUNTED], ids=["", "replay", "counted"])
def test_effects_are_switched_off_and_never_changed(row, more):
    found = row.effects(EVERY, row.conditions | more)
    assert {getattr(found, field.name) for field in fields(Effects)} <= {0, 0.5}
    assert row.effects(NO_EFFECTS, row.conditions | more) == NO_EFFECTS
    assert row.effects(found, row.conditions | more) == found


@named(ROWS)
def test_prices_are_those_of_the_row(row):
    paid = PRICING.under(row.conditions)
    assert paid.effects == row.effects(PRICING.effects, row.conditions)
    assert paid.in_flight == (row.in_flight or PRICING.in_flight)
    assert PRICING.for_rules(SMALL_PLAN.objective, row) == paid


@named([row for row in ROWS if row.storage is not None])
def test_memory_is_where_the_row_says(row):
    timeline = predict_timeline(SMALL, SMALL_PLAN, PRICING)
    update = memory_of(SMALL, SMALL_PLAN, timeline, 2, row.name).levels[-1]
    assert update.held.get(GRADIENTS, 0) == 600 * row.storage.gradients
    assert update.held.get(BUCKETS, 0) == 600 * row.storage.buckets


@named([row for row in ROWS if row.storage is not None])
def test_plans_that_it_does_not_carry_out_are_refused(row):
    plan = Plan("small", SMALL_PLAN.buckets, channels=2)
    timeline = predict_timeline(SMALL, plan, PRICING)
    assert row.carries(SMALL_PLAN.plain)
    assert row.carries(plan.plain) == row.any_plan
    if not row.any_plan:
        with pytest.raises(UsageError, match=f"{row.called} cannot run this plan"):
            memory_of(SMALL, plan, timeline, 2, row.name)


@named(RUNNING)
def test_its_module_trains_as_the_others_do(row):
    module = import_module(row.run.module)
    assert parameters(module.run) == parameters(training_run.run)
    assert parameters(module.require_installed) == ["command"]


@named([row for row in RUNNING if row.run.bench])
def test_its_module_measures_as_the_others_do(row):
    found = import_module(row.run.bench).measure_cluster
    assert parameters(found) == parameters(horovod_bench.measure_cluster)


def parameters(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("command", ["run", "bench"])
def test_commands_offer_those_that_they_can_use(command):
    shown = invoke([command, "--help"]).output
    wanted = [row.name for row in RUNNING if command == "run" or row.run.bench or row.name == "ddp"]
    assert f"[{'|'.join(wanted)}]" in shown


GIVEN = {
    "find_unused_parameters": ["--find-unused-parameters"],
    "static_graph": ["--static-graph"],
    "gradient_as_bucket_view": ["--gradient-as-bucket-view"],
    "comm_hook": ["--comm-hook"],
    "timeline": ["--timeline", "folder"],
    "compression": ["--compression", "fp16"],
    "asynchronous": ["--asynchronous"],
}


@named(RUNNING)
def test_options_of_other_executors_are_refused(row):
    for other in RUNNING:
        for option in other.run.options - row.run.options:
            words = ["run", "resnet50-v100", "--plan", "wfbp", "--executor", row.name, *GIVEN[option]]
            result = invoke([*words, "-o", "runs.json"])
            assert result.exit_code == 2
            assert other.run.refusal.format(executor=row.called) in result.stderr


@named([row for row in RUNNING if row.run.backend or row.run.profiled])
def test_what_a_run_needs_is_said_beforehand(row):
    words = ["run", "--plan", "wfbp", "--executor", row.name, "-o", "runs.json"]
    other = "nccl" if row.run.backend == "gloo" else "gloo"
    wrong = invoke([*words, "resnet50-v100", "--backend", other])
    assert (f"--executor {row.name} runs over {row.run.backend}" in wrong.stderr) == bool(row.run.backend)
    bare = invoke([*words, "package:make"])
    assert (f"--executor {row.name} needs the model's profile" in bare.stderr) == row.run.profiled


def test_targets_name_rows():
    assert all(
        EXECUTORS[target.executor.name] is target.executor for target in CONFIG_TARGETS.values() if target.executor
    )


def compares(tree: ast.Module) -> list[int]:
    """Lines that compare with the name of an executor, with a row, or ask which executor a run states."""
    rows = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == executors.__name__
        for alias in node.names
        if isinstance(getattr(executors, alias.name), executors.ExecutorRow)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        else:
            continue
        found += [
            node.value.lineno if isinstance(node, ast.MatchValue) else node.lineno
            for one in operands
            if names(one, rows)
        ]
    return found


def names(node: ast.expr, rows: set[str]) -> bool:
    """Whether an operand is an executor's name or row, a collection with one, or the condition ``executor``."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(names(one, rows) for one in node.elts)
    if isinstance(node, ast.Constant):
        return node.value in EXECUTORS
    if isinstance(node, ast.Attribute) and node.attr == "name":
        return names(node.value, rows)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return any(isinstance(one, ast.Constant) and one.value == "executor" for one in node.args)
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "executor"
    return isinstance(node, ast.Name) and node.id in rows


def test_no_module_compares_with_the_name_of_an_executor():
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules().items()}
    words = ("executor", *(f'"{name}"' for name in EXECUTORS))  # strings are in double quotes: ruff format sees to it
    naming = {name: text for name, text in texts.items() if any(word in text for word in words)}
    found = {name: compares(ast.parse(text)) for name, text in naming.items()}
    assert [name for name, places in found.items() if places and name != "entities.executors"] == []


@pytest.mark.parametrize(
    "line",
    [
        "executor == 'horovod'",
        "executor in ('ddp', other)",
        "executor is not RUNTIME",
        "row.name != RUNTIME.name",
        "stated.get('executor') == other",
        "stated['executor'] == other",
        "match executor:\n    case 'ddp-view':\n        pass",
    ],
)
def test_the_search_for_comparisons_can_fail(line):
    text = f"from {executors.__name__} import EXECUTORS, RUNTIME\n{line}\n"
    assert len(compares(ast.parse(text))) == 1
    assert compares(ast.parse("executor = 'ddp'\nrow = EXECUTORS['ddp'].name\nplan == 'wfbp'\n")) == []
