"""The rules of the house, enforced: floors, no cycles, late heavy imports, sizes, names."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "osfmodel"
FLOORS = [
    ("errors",),
    ("source", "checks", "units"),
    ("effects",),
    ("workload", "cluster", "timeline", "measurement"),
    ("intervals",),
    ("trace.record",),
    ("objective", "batches", "compression", "trace.buckets", "trace.usual"),
    ("plan",),
    (
        "documents",
        "notation",
        "contention",
        "cost.curves",
        "cost.layout",
        "cost.words",
        "cost.nccl_constants",
        "cost.jumps",
    ),
    ("cost.fitting", "trace.wires"),
    ("cost.collectives", "cost.minimum", "cost.by_count", "trace.nouns"),
    ("cost.hockney", "cost.hierarchical", "cost.tabulated", "cost.piecewise"),
    ("cost.nccl", "cost.protocols"),
    ("cost.nccl_fit",),
    ("cost",),
    ("profiles", "recursion", "formats.source_text", "pricing", "network"),
    ("sparse", "what_if"),
    ("optimizers",),
    ("memory",),
    ("schedule", "osf_model"),
    ("simulator",),
    ("engine", "loop"),
    ("trace.own_step",),
    ("trace",),
    ("loop_settings",),
    (
        "formats.json_text",
        "formats.collective",
        "formats.layout",
        "formats.packed",
        "formats.tar_stream",
        "formats.json_stream",
        "measurements",
        "bands",
    ),
    ("formats.nccl_log", "formats.horovod_events", "formats.trace_files"),
    ("formats.kineto_events", "formats.trace_ranks", "formats.trace_cycles", "formats.trace_sizes", "formats.traces"),
    ("formats.kineto_recorded",),
    ("formats.kineto_collectives",),
    ("formats.kineto_ends",),
    ("formats.kineto_windows",),
    ("formats.kineto_steps",),
    (
        "formats.nccl_tests",
        "formats.nccl_tests_json",
        "formats.osu",
        "formats.csv_table",
        "formats.csv_layers",
        "formats.pipedream",
        "formats.ddp_logging",
        "formats.horovod_timeline",
        "formats.horovod_autotune",
        "formats.kineto",
        "formats.own",
    ),
    ("formats.json_layers", "formats.unknown"),
    ("formats",),
    ("solve.jobs",),
    ("solve.windows",),
    ("solve.solution", "solve.bounds"),
    ("solve.contiguous", "solve.timed", "solve.retention"),
    ("solve.merge", "solve.mg_wfbp", "solve.exhaustive", "solve.robust", "solve.caps"),
    ("solve.mixed",),
    ("solve.asc_wfbp", "solve.byte_scheduler", "solve.us_byte"),
    ("solve.optimal", "solve.priority", "solve.pareto"),
    ("solve.local_search",),
    ("solve.planned",),
    ("solve.tape", "solve.block_program"),
    ("solve.resize",),
    ("solve.blocks",),
    ("solve",),
    ("solve.loaded",),
    ("solve.loops", "solve.chosen"),
    ("targets.target",),
    ("targets.ddp", "targets.horovod", "targets.deepspeed", "targets.megatron", "targets.byteps", "targets.fsdp2"),
    ("targets.accelerate", "targets.lightning", "targets.runtime"),
    ("targets",),
    ("plans",),
    ("predict", "economics"),
    ("memory_tuning",),
    ("task", "memory_tune"),
    ("tune",),
    ("snippets.launch", "snippets.nccl_tuner"),
    ("snippets",),
    ("diagnosis.parts",),
    ("diagnosis.messages",),
    ("diagnosis.replay",),
    ("diagnosis.replays", "diagnosis.bucket_rows"),
    ("diagnosis.findings",),
    ("diagnosis.words",),
    ("diagnosis.causes",),
    ("diagnosis",),
    ("remedies",),
    ("explain", "explain_tables"),
    ("ledger.recipe",),
    ("ledger.common", "ledger.counted"),
    (
        "ledger.bcaffe",
        "ledger.ddl_benchmarks",
        "ledger.emulated_ddp",
        "ledger.low_bandwidth",
        "ledger.memory",
        "ledger.papers",
        "ledger.pollux",
        "ledger.pytorch_ddp",
    ),
    ("ledger",),
    ("side_by_side",),
    ("check",),
    ("picture.gantt", "picture.curves", "picture.scatter", "ticks"),
    ("picture.coarse",),
    ("picture",),
    ("screens", "outputs"),
    ("screens.pictures", "chrome_trace", "report.markup"),
    ("report.iteration", "report.shell"),
    ("report.axes",),
    ("report.curves", "report.plans"),
    ("report.html", "report.explained"),
    ("report",),
    ("runtime",),
    ("runtime.pace",),
    ("runtime.ranks", "runtime.sizes", "runtime.replay", "runtime.buckets", "runtime.subjects", "runtime.largest"),
    ("runtime.job",),
    ("runtime.copies", "runtime.beside", "runtime.channels", "runtime.separate", "runtime.recompute"),
    ("runtime.sparse",),
    ("runtime.findings", "runtime.selecting"),
    ("runtime.surroundings",),
    ("runtime.bench",),
    ("runtime.trainees", "runtime.messages"),
    ("runtime.deferral", "runtime.release", "runtime.state"),
    ("runtime.admission",),
    ("runtime.executor",),
    ("runtime.training", "runtime.words", "runtime.under_horovod"),
    ("runtime.horovod",),
    ("runtime.horovod_run", "runtime.horovod_bench"),
    ("catalogue", "plot"),
    ("screens.results", "screens.listing", "screens.memory", "screens.explain", "screens.progress"),
    ("screens.check",),
    ("outputs.results", "outputs.check", "outputs.memory", "outputs.explain", "outputs.render"),
    ("runtime.steps", "runtime.clocks", "runtime.segments"),
    ("runtime.allocations",),
    ("runtime.recording", "runtime.conditions"),
    ("runtime.profiling",),
    ("runtime.driving", "runtime.callbacks", "runtime.choice", "runtime.session"),
    ("runtime.live",),
    ("cli.app",),
    ("cli.subject", "cli.options", "cli.trace_options"),
    ("cli.tune_live", "cli.tune_memory"),
    ("plot_pictures",),
    ("cli.predict", "cli.report"),
    ("cli.memory", "cli.tune", "cli.check", "cli.listing", "cli.importing", "cli.profile", "cli.bench", "cli.run"),
    ("cli.explain",),
    ("cli",),
]
"""Lowest first. A module imports only from floors below its own."""
HEAVY = {"scipy", "cvxpy", "torch", "matplotlib", "rich", "yaml"}
SCREENS = ("cli", "screens", "outputs")
"""The packages that may know click and rich: what a person sees."""


def is_screen(name: str) -> bool:
    """Whether a module may know click and rich."""
    return name.partition(".")[0] in SCREENS


@cache
def modules() -> dict[str, Path]:
    """Every module by its name inside the package; the package's own __init__ and __main__ stand above all."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        if name not in ("__init__", "__main__"):
            found[name] = path
    return found


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Absolute names of the modules that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inner(name: str) -> str | None:
    """The module of the package that an imported name belongs to; None for others and for the package itself."""
    if name.partition(".")[0] != "osfmodel":
        return None
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in modules():
        parts.pop()
    return ".".join(parts) or None


def test_every_module_has_a_floor():
    listed = [name for floor in FLOORS for name in floor]
    assert sorted(set(modules()) - set(listed)) == [], "add to FLOORS, above all that it imports"
    assert sorted(set(listed) - set(modules())) == [], "no such module: take it out of FLOORS"
    assert sorted(name for name in set(listed) if listed.count(name) > 1) == [], "listed twice in FLOORS"


FOR_USERS = {"runtime", "runtime.callbacks", "runtime.executor", "solve.exhaustive"}
"""What scripts import, or who adds a solver for its tests. Commands are loaded by name."""


def test_every_module_is_reached():
    """Nothing is in the package for its tests or benchmarks alone."""
    used = {
        inner(imported) for name, path in modules().items() for imported in imports(path) if inner(imported) != name
    }
    bare = {name for name, path in modules().items() if len(ast.parse(path.read_text(encoding="utf-8")).body) == 1}
    alone = {name for name in set(modules()) - used - bare if name.partition(".")[0] != "cli"}
    assert sorted(alone - FOR_USERS) == []


def upward(name: str, path: Path) -> list[str]:
    """The modules that the code at ``path``, as module ``name``, imports from its own floor or one above.

    What has no floor is named by ``test_every_module_has_a_floor`` alone.
    """
    height = {module: number for number, floor in enumerate(FLOORS) for module in floor}
    found = {inner(imported) for imported in imports(path)} - {None, name}
    return sorted(below for below in found & set(height) if name in height and height[below] >= height[name])


@pytest.mark.parametrize("name", modules())
def test_imports_go_down(name):
    assert upward(name, modules()[name]) == []


def test_the_check_of_floors_can_fail(tmp_path):
    """An oracle shown failing: upward imports are seen, at the top of a file or inside a function."""
    path = tmp_path / "curves.py"
    path.write_text("from osfmodel.errors import OsfError\ndef f():\n    from osfmodel.cost import nccl\n")
    assert upward("cost.curves", path) == ["cost.nccl"]
    path.write_text("import osfmodel.cost.curves\nfrom osfmodel.cost.layout import Layout\nimport numpy.linalg\n")
    assert upward("cost.curves", path) == ["cost.layout"]  # the same floor is not below
    assert upward("cost.nccl", path) == []
    assert upward("no.floor", path) == []
    assert inner("osfmodel.cli.main") == "cli"


NAMES = 41
"""The column of the picture in docs/design.md at which what is said of a row begins; later where its names are long."""


def rows_of(picture: str) -> list[list[str]]:
    """The modules and packages (``cost/`` and what follows it) that each row of a picture names, the highest first."""
    rows, package = [], ""
    for line in picture.splitlines():
        end = NAMES if line[NAMES - 1 : NAMES] in ("", " ") else re.search(r"\s{3,}|$", line[NAMES:]).start() + NAMES
        package = package if line.startswith(" ") else ""
        names = []
        for word in line[:end].split():
            package = word[:-1] if word.endswith("/") else package
            names += [package if word.endswith("/") else f"{package}.{word}".strip(".")] if word != "..." else []
        rows.append(names)
    return rows


def raised(rows: Sequence[Sequence[str]], imported: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """(Module, what it imports from a row above its own): what the rows name, others standing with their package.

    Inside of a package only what is named is compared.
    """
    row = {name: number for number, names in reversed(list(enumerate(rows))) for name in names}

    def place(name: str) -> int:
        return row[name] if name in row else row[name.rpartition(".")[0]]

    return [
        (name, below)
        for name, found in sorted(imported.items())
        for below in sorted(found - {name})
        if place(below) < place(name)
        and (name.partition(".")[0] != below.partition(".")[0] or {name, below} <= set(row))
    ]


def test_the_picture_in_design_is_of_these_floors():
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    rows = rows_of(text.partition("## Floors\n\n```\n")[2].partition("```")[0])
    named = {name for names in rows for name in names}
    assert sorted(named - set(modules())) == []
    assert sorted({name.partition(".")[0] for name in modules()} - named) == []
    used = {name: {inner(one) for one in imports(path)} - {None} for name, path in modules().items()}
    assert raised(rows, used) == []


def test_the_check_of_the_picture_can_fail():
    rows = rows_of(
        "cost/      nccl ...                      words\n           hockney                       words\nplan  units\n"
    )
    assert rows == [["cost", "cost.nccl"], ["cost.hockney"], ["plan", "units"]]
    used = {"plan": {"units", "cost.nccl", "cost.other"}, "cost.nccl": {"cost.hockney", "plan"}, "cost.other": {"cost"}}
    assert raised(rows, used) == [("plan", "cost.nccl"), ("plan", "cost.other")]
    assert raised(rows, {"cost.hockney": {"cost.nccl", "cost.other"}}) == [("cost.hockney", "cost.nccl")]


@pytest.mark.parametrize("name", modules())
def test_heavy_packages_are_imported_late(name):
    top = {imported.partition(".")[0] for imported in imports(modules()[name], top_level_only=True)}
    assert not (top & HEAVY) or name.startswith("screens.")


@pytest.mark.parametrize("name", modules())
def test_only_screens_know_click_and_rich(name):
    used = {imported.partition(".")[0] for imported in imports(modules()[name])}
    if not is_screen(name):
        assert not used & {"click", "rich"}


def test_screens_are_known_by_their_packages():
    assert all(map(is_screen, ("cli.anything", "cli", "screens.anything", "outputs.anything")))
    assert not any(map(is_screen, ("predict", "picture.gantt", "explain", "screening", "runtime.screens")))


@pytest.mark.parametrize("name", modules())
def test_modules_stay_small(name):
    assert len(modules()[name].read_text(encoding="utf-8").splitlines()) <= 350


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)]


def code_lines(function: ast.FunctionDef) -> int:
    """Physical lines, docstring left out."""
    docstring = function.body[0] if ast.get_docstring(function) else None
    skipped = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return function.end_lineno - function.lineno + 1 - skipped


def test_functions_stay_short():
    lengths = sorted(code_lines(function) for path in modules().values() for function in functions(path))
    assert lengths[len(lengths) // 2] <= 8
    assert lengths[int(len(lengths) * 0.95)] <= 30


def test_public_functions_have_docstrings():
    missing = []
    for name, path in modules().items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        for node in [*tree.body, *classes, *(member for item in classes for member in item.body)]:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):
                missing.append(f"{name}.{node.name}")
    overloads = {"cost.curves.__call__"}
    results = [name for name in modules() if name.startswith("outputs.")]
    said_once = ("document", "rows", "show", "warnings")  # on render.Result
    shown = {f"{module}.{method}" for module in results for method in said_once}
    assert sorted(set(missing) - overloads - shown) == []


def test_no_clock_and_no_chance_in_the_model():
    """Deterministic: nothing below the screens reads a clock or draws a random number; what measures does."""
    for name, path in modules().items():
        if not is_screen(name) and not name.startswith("runtime."):
            text = path.read_text(encoding="utf-8")
            assert not re.search(
                r"\b(import (time|random|datetime)\b|np\.random|from (time|random|datetime) )", text
            ), name


def asserts(function: ast.FunctionDef) -> bool:
    """Whether it can fail: an assert, pytest.raises, or a call that raises (assert_..., require_valid, check=True)."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            checked = [ast.unparse(keyword) for keyword in node.keywords]
            if called == "pytest.raises" or called.startswith("assert_") or called.endswith(".require_valid"):
                return True
            if "check=True" in checked:
                return True
    return False


def test_every_test_asserts_something():
    tests = [
        (path.name, function)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for function in functions(path)
        if function.name.startswith("test_")
    ]
    assert len(tests) > 300
    assert [f"{name}: {function.name}" for name, function in tests if not asserts(function)] == []


def test_the_search_for_assertions_can_fail(tmp_path):
    path = tmp_path / "test_nothing.py"
    path.write_text('def test_a():\n    """Would assert, and pytest.raises."""\n    asserted = 1\n')
    assert [asserts(function) for function in functions(path)] == [False]
