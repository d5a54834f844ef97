"""The rules of the house, enforced: floors, no circles, late heavy imports, sizes, names."""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path

import pytest

from osfmodel.entities.display import WRITER
from osfmodel.entities.executors import EXECUTORS
from tests.conftest import ROOT

PACKAGE = ROOT / "osfmodel"
FLOORS = (
    ("entities",),
    ("cost", "counting"),
    ("engine",),
    ("solve", "formats"),
    ("targets", "diagnosis"),
    ("planning", "ledger"),
    ("show", "runtime"),
    ("cli",),
)
"""Lowest first. A package imports only from floors below its own."""
TABLES = {"cost": "cost", "solve": "solve", "targets": "targets", "formats": "formats.format", "ledger": "ledger"}
"""Packages with a table of members, one module each, which do not import each other; the module of each table."""
SHARED = {
    "cost": {"hierarchical": {"textbook"}},  # rings inside nodes and between them
    "targets": {"ddp_dialects": {"ddp"}},  # wrappers of it
    "solve": {
        "blocks": {"exact.optimal"},  # it begins with the best plan of whole tensors
        "search.planned": {  # the best of several methods, of which these are some
            "exact.optimal", "published.asc_wfbp", "published.byte_scheduler", "published.mg_wfbp", "published.us_byte",
        },
    },
}  # fmt: skip
"""Members that may be imported by another one, each with the reason."""
LONGEST_CHAIN = 23
"""Modules in the longest chain of imports, file by file."""
COMPUTING = ("engine", "solve", "targets", "diagnosis", "planning", "ledger")
"""The packages that compute results. What shows them imports their types and plain constants, and computes nothing."""
SHOWN = {
    "osfmodel.diagnosis.causes.CAUSES",  # a table of functions, of which each cause's summary is shown
    "osfmodel.diagnosis.causes.label_of",  # the name of a cause
}
"""Further values that may be shown, each with the reason."""
HEAVY = {"scipy", "cvxpy", "torch", "transformers", "timm", "diffusers", "matplotlib", "rich", "yaml"}
SCREENS = ("cli", "show")
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


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax, of the kinds that are looked for."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Constant)
    return tuple(node for node in ast.walk(parsed(path)) if isinstance(node, kinds))


@cache
def imports(path: Path, top_level_only: bool = False) -> frozenset[str]:
    """Absolute names of the modules that a file imports."""
    found: set[str] = set()
    for node in parsed(path).body if top_level_only else nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def inner(name: str) -> str | None:
    """The module of the package that an imported name belongs to; None for others and for the package itself."""
    if name.partition(".")[0] != "osfmodel":
        return None
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in modules():
        parts.pop()
    return ".".join(parts) or None


@cache
def graph() -> dict[str, set[str]]:
    """{module: the modules of the package that it imports, anywhere in its code}."""
    return {name: {inner(found) for found in imports(path)} - {None, name} for name, path in modules().items()}


def upward(name: str, imported: Set[str]) -> list[str]:
    """The modules among ``imported`` in another package on the floor of module ``name`` or above."""
    height = {package: number for number, floor in enumerate(FLOORS) for package in floor}
    own = name.partition(".")[0]
    packages = {below: below.partition(".")[0] for below in imported}
    return sorted(below for below, package in packages.items() if package != own and height[package] >= height[own])


def circles(edges: dict[str, set[str]]) -> list[str]:
    """The nodes that can be reached from themselves."""
    reached = {node: set(below) for node, below in edges.items()}
    for middle in edges:
        for node in edges:
            if middle in reached[node]:
                reached[node] |= reached[middle]
    return sorted(node for node in edges if node in reached[node])


def longest_chain(edges: dict[str, set[str]]) -> list[str]:
    """The longest path of a graph without circles."""

    @cache
    def below(node: str) -> tuple[str, ...]:
        return (node, *max((below(other) for other in sorted(edges[node])), key=len, default=()))

    return list(max((below(node) for node in sorted(edges)), key=len))


def test_the_top_level_is_twelve_packages():
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert packages == {name for floor in FLOORS for name in floor}
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__"}


def test_imports_go_down():
    assert {name: found for name, below in graph().items() if (found := upward(name, below))} == {}


def test_there_are_no_circles():
    """Modules that tables load late are included."""
    assert circles({name: found | late(modules()[name]) for name, found in graph().items()}) == []


def test_chains_of_imports_are_short():
    assert len(longest_chain(graph())) <= LONGEST_CHAIN


@pytest.mark.parametrize("package", TABLES)
def test_members_of_a_table_do_not_import_each_other(package):
    members = {name for name in modules() if name.partition(".")[0] == package}
    tables = {
        f"{package}.{member}": {f"{package}.{one}" for one in known}
        for member, known in SHARED.get(package, {}).items()
    }
    listed = {name for name in members if listed_in(package, name)}
    found = {name: (graph()[name] & listed) - tables.get(name, set()) for name in listed}
    assert {name: below for name, below in found.items() if below} == {}


@cache
def late(path: Path) -> frozenset[str]:
    """The modules that tables in a file name as ``module:attribute``, to be loaded when they are asked for."""
    words = [str(node.value) for node in nodes(path) if isinstance(node, ast.Constant)]
    found = (re.fullmatch(r"([a-z_0-9.]+):[A-Z_]+", word) for word in words)
    return frozenset(match[1] for match in found if match and match[1] in modules())


def listed_in(package: str, member: str) -> bool:
    """Whether the table of ``package`` names more of ``member`` than row types and constants."""
    path = modules()[TABLES[package]]
    if member in late(path):
        return True
    tree = parsed(path)
    names = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if inner(f"{node.module}.{alias.name}") == member
    }
    assigned = [node.value for node in tree.body if isinstance(node, ast.AnnAssign) and node.value is not None]
    tables = [node for value in assigned for node in ast.walk(value) if isinstance(node, ast.Dict)]
    rows = {node.func for table in tables for node in ast.walk(table) if isinstance(node, ast.Call)}
    found = {node for table in tables for node in ast.walk(table) if isinstance(node, ast.Name)} - rows
    return bool(names & {node.id for node in found if not node.id.isupper()})


def test_the_checks_of_imports_can_fail(tmp_path):
    """Oracles shown failing: upward imports, circles and long chains, at the top of a file or in a function."""
    path = tmp_path / "shapes.py"
    path.write_text("from osfmodel.entities.errors import OsfError\ndef f():\n    from osfmodel.engine import memory\n")
    found = {inner(name) for name in imports(path)}
    assert upward("cost.shapes", found) == ["engine.memory"]
    assert upward("solve.bounds", {"formats.layers", "solve.caps", "cost"}) == ["formats.layers"]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]
    assert inner("osfmodel.cli.main") == "cli"
    assert listed_in("cost", "cost.nccl_fit")
    assert all(any(listed_in(package, name) for name in modules()) for package in TABLES)
    assert not listed_in("cost", "cost.shapes")


def test_each_package_begins_with_its_contract():
    """One sentence, which the tree in docs/design.md repeats."""
    design = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    for package in (name for floor in FLOORS for name in floor):
        contract = (ast.get_docstring(parsed(modules()[package])) or "").splitlines()[0]
        assert contract.endswith(".")
        assert contract in " ".join(design.split()), package


def test_no_class_name_means_two_things():
    places = defaultdict(list)
    for name, path in modules().items():
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


BY_NAME = {module for row in EXECUTORS.values() if row.run for module in (row.run.module, row.run.bench) if module}
"""Modules of executors, which commands load by the name in their row."""
BY_METHODS = {WRITER}
"""Modules that methods of nouns load by name, although they stand above: docs/decisions.md has the reason."""
FOR_USERS = {"entities.modules", "runtime.callbacks", "runtime.executor", "runtime.profiler"}
"""Modules that scripts import. Commands are loaded by name."""


def test_every_module_is_reached():
    """Nothing is in the package for its tests or benchmarks alone."""
    used = {below for found in graph().values() for below in found} | set(map(inner, BY_NAME | BY_METHODS))
    used |= {name for path in modules().values() for name in late(path)}
    bare = {name for name, path in modules().items() if len(parsed(path).body) == 1}
    alone = {name for name in set(modules()) - used - bare if name.partition(".")[0] != "cli"}
    assert sorted(alone - FOR_USERS) == []


def using(packages: set[str], top_level_only: bool) -> list[str]:
    """The modules that import one of these packages."""
    roots = {
        name: {imported.partition(".")[0] for imported in imports(path, top_level_only)}
        for name, path in modules().items()
    }
    return [name for name, used in roots.items() if used & packages]


def test_heavy_packages_are_imported_late():
    assert using(HEAVY, top_level_only=True) == []
    assert using(HEAVY, top_level_only=False)


def test_only_screens_know_click_and_rich():
    knowing = using({"click", "rich"}, top_level_only=False)
    assert [name for name in knowing if not is_screen(name)] == []
    assert knowing


def test_forms_know_no_result():
    forms = {f"show.{name}" for name in ("table", "document", "terminal", "page", "picture")}
    known = {below for form in forms for below in graph()[form]}
    assert {name for name in known - forms if not name.startswith("entities")} == set()


def is_data(value: object) -> bool:
    """Whether it is a type, or a constant without functions."""
    if isinstance(value, Mapping):
        return all(map(is_data, value.values()))
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(is_data, value))
    return value is None or isinstance(value, type | str | int | float)


def computed(path: Path) -> set[str]:
    """The functions that a module imports from the packages that compute."""
    found = set()
    for name in imports(path):
        owner, _, attribute = name.rpartition(".")
        if (inner(name) or "").partition(".")[0] in COMPUTING:
            value = getattr(importlib.import_module(owner), attribute)
            found |= set() if is_data(value) else {name}
    return found


def test_what_shows_results_computes_none():
    showing = {name: computed(path) - SHOWN for name, path in modules().items() if name.startswith("show.")}
    assert {name: found for name, found in showing.items() if found} == {}
    assert showing


def test_the_check_for_computing_can_fail(tmp_path):
    path = tmp_path / "picture.py"
    path.write_text(
        "from osfmodel.planning.tuning import HOST_LEADS, Tuning, tune\nfrom osfmodel.engine import memory\n"
    )
    assert computed(path) == {"osfmodel.planning.tuning.tune", "osfmodel.engine.memory"}


def test_screens_are_known_by_their_packages():
    assert all(map(is_screen, ("cli.anything", "cli", "show.anything", "show")))
    assert not any(map(is_screen, ("planning.tuning", "showing", "runtime.show")))


def test_modules_stay_small():
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: length for name, length in lengths.items() if length > 355} == {}


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in nodes(path) if isinstance(node, ast.FunctionDef)]


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
    methods_of_results = ("content", "rows", "show", "warnings")  # they say what they do on document.Result
    for name, path in modules().items():
        tree = parsed(path)
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        results = [item for item in classes if "Result" in {getattr(base, "id", "") for base in item.bases}]
        described = [
            member for item in results for member in item.body if getattr(member, "name", "") in methods_of_results
        ]
        for node in [*tree.body, *classes, *(member for item in classes for member in item.body)]:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and node not in described and not ast.get_docstring(node):
                missing.append(f"{name}.{node.name}")
    overloads = {"cost.shapes.__call__"}
    assert sorted(set(missing) - overloads) == []


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


def test_the_suite_mirrors_the_packages():
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    elsewhere = {"conformance", "golden", "live", "repository"}
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders == packages | elsewhere
