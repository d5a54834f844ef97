"""The public names of the library: what they are, that they are loaded when asked for, and that none hides a module."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import subprocess
import sys

import pytest

import osfmodel as osf
from tests.conftest import ROOT


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


def test_type_checkers_see_what_is_public():
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
    """As a sweep in several processes does."""
    workload, cluster = osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe")
    prediction = osf.predict(workload, cluster, "ddp", 4)
    loaded = pickle.loads(pickle.dumps(prediction))
    assert (loaded.plan, loaded.timeline, loaded.gap) == (prediction.plan, prediction.timeline, prediction.gap)
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


def test_tuning_loads_what_it_needs():
    """At most 80 modules of ours for DDP's settings."""
    words = "['tune', 'resnet50-v100', '--cluster', 'v100-10gbe', '--workers', '64', '--for', 'ddp']"
    code = (
        f"import sys; from osfmodel.cli import main\ntry:\n    main({words})\nexcept SystemExit:\n    pass\n"
        "print(sum(name.split('.')[0] == 'osfmodel' for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert int(done.stderr.splitlines()[-1]) <= 80
