"""The public names of the library: what they are, that they are loaded when asked for, and that none hides a module."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass

import pytest

import osfmodel as osf
from tests.blocks import blocks
from tests.conftest import ROOT
from tests.jobs import Job, trace_of


def output_of(code: str) -> str:
    """The output of a fresh interpreter."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


def test_no_public_name_is_that_of_a_module():
    """``import osfmodel.tune as tune`` would otherwise give now a module and now a function."""
    assert not set(osf.__all__) & {module.name for module in pkgutil.iter_modules(osf.__path__)}
    for name in ("tune", "predict", "explain", "economics"):
        assert callable(getattr(osf, name))
        with pytest.raises(ModuleNotFoundError, match=f"No module named 'osfmodel.{name}'"):
            importlib.import_module(f"osfmodel.{name}")


def test_each_public_name_is_loaded_from_where_it_is_defined_or_tabled():
    for module, names in osf.PUBLIC.items():
        found = vars(importlib.import_module(f"osfmodel.{module}"))
        assert all(getattr(osf, name) is found[name] for name in names.split())
    assert sorted(osf.__all__) == sorted({name for names in osf.PUBLIC.values() for name in names.split()})
    with pytest.raises(AttributeError, match="has no attribute 'tuna'"):
        _ = osf.tuna


def test_type_checkers_see_the_public_names():
    """The imports for type checkers are those of PUBLIC."""
    tree = ast.parse((ROOT / "osfmodel/__init__.py").read_text(encoding="utf-8"))
    seen = {
        (str(node.module).removeprefix("osfmodel."), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("osfmodel.")
        for alias in node.names
    }
    assert seen == {(module, name) for module, names in osf.PUBLIC.items() for name in names.split()}


def test_importing_the_library_loads_no_module_of_it():
    loaded = "[name for name in sys.modules if name.split('.')[0] == 'osfmodel']"
    assert output_of(f"import sys, osfmodel; dir(osfmodel); print({loaded})") == "['osfmodel']"
    assert output_of("import sys, osfmodel; osfmodel.Layer; print('numpy' in sys.modules)") == "False"


def test_profile_loads_the_runtime_and_no_torch():
    loaded = "[name for name in ('torch', 'osfmodel.runtime.profiler') if name in sys.modules]"
    assert output_of(f"import sys, osfmodel; osfmodel.profile; print({loaded})") == "['osfmodel.runtime.profiler']"


def test_all_names_can_be_listed_and_imported_at_once():
    assert set(osf.__all__) <= set(dir(osf))
    code = (
        "from osfmodel import *; import osfmodel; print([name for name in osfmodel.__all__ if name not in globals()])"
    )
    assert output_of(code) == "[]"


def test_public_objects_can_be_pickled():
    """A sweep in several processes pickles them."""
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    prediction = osf.predict(workload, cluster, "ddp", 4)
    loaded = pickle.loads(pickle.dumps(prediction))
    assert (loaded.plan, loaded.timeline, loaded.gap) == (prediction.plan, prediction.timeline, prediction.gap)
    sharded = osf.predict(workload, cluster, "fsdp2", 4).timeline  # with the run of its program
    assert pickle.loads(pickle.dumps(sharded)) == copy.deepcopy(sharded) == sharded
    errors = (osf.UsageError("a"), osf.DataError("b"), osf.ForeignFileError(ROOT, "cluster", "is empty"))
    tuning = osf.tune(workload, cluster, 4)
    assert pickle.loads(pickle.dumps(tuning)).rendered == tuning.rendered
    for value in (workload, cluster, prediction.plan, prediction.timeline, osf.Effects(), osf.Limits()):
        assert pickle.loads(pickle.dumps(value)) == value
    for error in errors:
        assert (type(error), str(error)) == (type(loaded := pickle.loads(pickle.dumps(error))), str(loaded))
    for name in osf.__all__:
        value = getattr(osf, name)
        if isinstance(value, type) or callable(value):
            assert pickle.loads(pickle.dumps(value)) is value


def parts(value) -> Iterator[object]:
    """The dataclass itself and every one inside it."""
    if is_dataclass(value):
        yield value
        for field in fields(value):
            if field.name.startswith("_"):
                continue  # what it keeps for itself, such as changed workloads, which lead back to it
            yield from parts(getattr(value, field.name, None))
    elif isinstance(value, Mapping):
        yield from parts(tuple(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for one in value:
            yield from parts(one)


def bundled_nouns(every: int) -> Iterator[object]:
    """One of so many bundled workloads, clusters and runs, and results made of them."""
    for path in sorted((ROOT / "profiles").glob("*/*.json"))[::every]:
        load = {"workloads": osf.load_workload, "clusters": osf.load_cluster, "measurements": osf.load_measurements}
        if path.parent.name in load:
            yield load[path.parent.name](path)
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    yield osf.load_cluster("nccl:h100x8,400Gbps")
    pricing = osf.pricing_of(cluster, 16)
    question = osf.Question(workload, pricing, osf.Objective(), osf.Limits(2**26, 100))
    comparison = osf.compare(workload, cluster, 16, ["ddp", "optimal", "sparse:1%,ddp", "byte-scheduler"])
    tuning = osf.tune(workload, cluster, 16)
    memory = osf.tune_memory(blocks(16, 2), cluster, 8, osf.MemoryBudget(2**31))
    levels = osf.memory_of(memory.after.workload, memory.after.plan, memory.after.timeline, 8)
    yield (pricing, question, osf.SOLVERS["optimal"].solve(question), comparison, tuning, memory, levels)
    yield (osf.WhatIf(osf.Change(2), compute=1.5), osf.Economics(16, 1 / 3, 16 / 3, 1e9 / 7), osf.Contention(4, 4 / 3))
    link = osf.Link(1 / 3, 1 / 7, 1 / 9)
    fits = (osf.Pieces(4, (1.0, 2.0), (0.2, 0.1)), osf.FittedRange(1, 2**26, (2, 4, 8)), osf.AlphaBeta(8, 1 / 3, 1 / 7))
    yield (*fits, osf.Protocol(1 / 3, 1 / 7, link, link), link)
    yield osf.Search(osf.Objective(2, True, "split"), 2**26, 2**31)
    yield osf.explain(trace_of(Job()))
    yield osf.compare_runs(trace_of(Job()), trace_of(Job()))
    anchor, length = osf.Anchor(8, 1 / 3), osf.TrainingLength(1e9 / 7)
    options = osf.ScaleOptions(("ddp",), what_if=osf.WhatIf(accumulate=2), training=length, anchor=anchor)
    curve = osf.scale(workload, cluster, [8, 16], options)
    goals = osf.Goals(scaling=0.5)
    yield (osf.Parallelism(2), options, goals, curve, *osf.answers(curve, options, goals))
    priced = osf.scale(workload, cluster, [8, 16], osf.ScaleOptions(("ddp",), training=osf.TrainingLength(price=2)))
    yield from osf.cheapest([priced], goals)
    yield osf.sweep({"workloads": "resnet50-v100", "clusters": "v100-10gbe", "workers": 2})


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_the_repr_of_a_public_dataclass_is_one_short_line(every):
    """With the name of its class, and in all cases of its class."""
    public = {name: getattr(osf, name) for name in osf.__all__ if is_dataclass(getattr(osf, name))}
    seen = set()
    for value in {id(one): one for noun in bundled_nouns(every) for one in parts(noun)}.values():
        name = type(value).__name__
        if public.get(name) is type(value):
            seen.add(name)
            said = repr(value)
            assert len(said) <= 120, said
            assert "\n" not in said
            assert re.match(rf"<?{name}\b", said), said
    assert {one.__name__ for one in public.values()} - seen == set()
    assert repr(osf.load_workload("resnet50-v100")) == (
        "<Workload resnet50-v100: 161 tensors, 97.49 MiB, 95.60 ms on one GPU, batch 32>"
    )
    assert repr(osf.Effects()) == "<Effects>"
    assert repr(osf.Source("a" * 200)) == f"<Source origin='{'a' * 100}...>"


@pytest.mark.parametrize(("effect", "most"), [(["--effect", "none"], 86), ([], 133)])
def test_tuning_loads_few_modules(effect, most):
    """At most 86 modules of ours for DDP's settings; all named plans where none is proven, as under effects."""
    words = ["tune", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "64", "--for", "ddp", *effect]
    code = (
        f"import sys; from osfmodel.cli import main\ntry:\n    main({words})\nexcept SystemExit:\n    pass\n"
        "print(sum(name.split('.')[0] == 'osfmodel' for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert int(done.stderr.splitlines()[-1]) <= most
