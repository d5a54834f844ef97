"""The examples of tests/example_package, put into the tables, pass all conformance tests of those tables."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
from itertools import product

import pytest

from osfmodel import CONFIG_TARGETS, COST_MODELS, SOLVERS
from osfmodel.formats import IMPORT_FORMATS, reading
from osfmodel.targets.named_plans import NAMED_PLANS, named_rule
from tests.commands import invoke
from tests.conformance import test_cost_models, test_solvers, test_targets
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("ideal")


@pytest.fixture(scope="module")
def example():
    """The module of the package, to which the how-to pages lead."""
    spec = importlib.util.spec_from_file_location("osf_example", ROOT / "tests/example_package/osf_example.py")
    module = sys.modules["osf_example"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["osf_example"]


def put_through(module, parameter, like, **fixtures):
    """Run every test of ``module`` that the entry ``like`` of its table is put through, for the entry "example".

    Returns the names of those tests.
    """
    ran = []
    for name, test in vars(module).items():
        if not name.startswith("test_"):
            continue
        tables = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        marks = {names: list(values) for names, values, *_ in tables}
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


def test_the_cost_model(example, monkeypatch):
    monkeypatch.setitem(COST_MODELS, "example", example.switch)
    assert put_through(test_cost_models, "model", "ring") == listed(test_cost_models, "model")
    assert COST_MODELS["example"].summary


def test_a_line_in_the_table_is_all_that_commands_need(example, monkeypatch):
    """In words, with a faster network by a factor and by a figure, tuned for; all prices are those of the model."""
    monkeypatch.setitem(COST_MODELS, "example-switch", example.switch)
    cluster = ["googlenet-k80", "--cluster", "example-switch:100us,5Gbps", "--workers", "16", "--json"]

    def ran(command, *words):
        result = invoke([command, *cluster, *words])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    changes = ([], ["--bandwidth", "x2"], ["--bandwidth", "10Gbps"])
    single = [ran("predict", "--plan", "single", *words) for words in changes]
    slow, fast, stated = (document["predictions"][0]["exposed_communication_s"] for document in single)
    latency = 100e-6
    assert slow - latency == pytest.approx(2 * (fast - latency))
    assert stated == pytest.approx(fast)
    assert ran("predict", "--plan", "single", "--latency", "x3")["predictions"][0]["exposed_communication_s"] == (
        pytest.approx(slow + 2 * latency)
    )
    tuned = ran("tune", "--bandwidth", "x2")
    assert tuned["lower_bound_s"] <= tuned["tuned_iteration_time_s"] <= tuned["default_iteration_time_s"]
    assert tuned["tuned_iteration_time_s"] < single[1]["predictions"][0]["iteration_time_s"]


def test_nothing_else_asks_for_a_cost_model_by_its_name():
    """Exceptions belong to one model: NCCL's tuner file, and a cluster that osf bench adds tables to."""
    asking = re.compile(r"cost_model (?:==|!=|in|not in) [^C]")
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "osfmodel").rglob("*.py")
        if asking.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"osfmodel/planning/tuning/launch.py", "osfmodel/runtime/bench/measured_cluster.py"}


def test_the_solver(example, monkeypatch):
    monkeypatch.setitem(SOLVERS, "example", example.idle_flush)
    monkeypatch.setitem(NAMED_PLANS, "example", named_rule("example", example.idle_flush))
    ran = put_through(test_solvers, "name", "mg-wfbp")
    assert ran == listed(test_solvers, "name")
    assert SOLVERS["example"].summary


@pytest.mark.parametrize("subject", test_targets.CASES, ids=lambda subject: "-".join(map(str, subject)))
def test_the_target(example, monkeypatch, subject):
    monkeypatch.setitem(CONFIG_TARGETS, "example", example.target)
    ran = put_through(test_targets, "name", "ddp", case=test_targets.build(subject))
    assert ran == [name for name in listed(test_targets, "name") if "an_executor" not in name]
    assert CONFIG_TARGETS["example"].summary


LOG, TOY = "example-bench v1\n1024 0.05\n1048576 1.2\n", "example-profiler v1\n0 20\n20 41\n"
DAMAGE = ["", "x", "-", "9" * 30, "9e999", " 1", "\n", "\0", "\N{SNOWMAN}"]
NO_LAST_FIELD = "example-profiler v1\n0 20\n20\n"


@pytest.fixture
def examples_are_formats(example, monkeypatch):
    """Both formats in the table."""
    added = {"example-bench": example.bench, "example-profiler": example.profiler}
    monkeypatch.setattr(reading, "IMPORT_FORMATS", {**IMPORT_FORMATS, **added})


def asked(folder, command, name, content, *words):
    """The result of a command on a file."""
    (folder / name).write_text(content, encoding="utf-8")
    return invoke([command, str(folder / name), *words])


@pytest.mark.usefixtures("examples_are_formats")
def test_the_formats(example, tmp_path):
    """Read by the commands; a damaged line is refused with file and line."""
    workers = ["--workers", "4"]
    assert asked(tmp_path, "import", "run.txt", LOG, *workers).stdout.startswith("cluster run: all_reduce with 4")
    assert asked(tmp_path, "explain", "b.toy", TOY).exit_code == 0
    refused = [
        asked(tmp_path, "import", "run.txt", LOG.replace("1.2", "fast"), *workers),
        asked(tmp_path, "explain", "b.toy", NO_LAST_FIELD),
    ]
    said = [result.stderr.replace(f"{tmp_path}/", "") for result in refused]
    assert [result.exit_code for result in refused] == [1, 1]
    assert said == [
        "osf: run.txt: line 3: is not a number: 'fast'\n",
        "osf: b.toy: line 3: is no start with an end: '20'\n",
    ]


@pytest.mark.usefixtures("examples_are_formats")
@pytest.mark.parametrize("damage", DAMAGE, ids=ascii)
def test_a_damaged_file_of_the_formats_is_read_or_refused(example, tmp_path, damage):
    """Wherever the damage is: on one line, with the file."""
    for command, name, content, words in (
        ("import", "run.txt", LOG, ["--workers", "4"]),
        ("explain", "b.toy", TOY, []),
    ):
        first = content.index("\n") + 1
        for place in range(first, len(content)):
            damaged = content[:place] + damage + content[place + 1 :]
            result = asked(tmp_path, command, name, damaged, *words)
            errors = [line for line in result.stderr.splitlines() if line.startswith("osf: ")]
            assert result.exit_code in (0, 1), (damaged, result.exception)
            assert result.exit_code == 0 or (len(errors) == 1 and name in errors[0]), damaged
            assert isinstance(result.exception, SystemExit | None), damaged
