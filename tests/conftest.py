"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from osfmodel import Cluster, Layer, Link, Table, Workload
from osfmodel.entities.workload import Gradients
from osfmodel.ledger import LEDGER
from osfmodel.ledger import check as ledger_check
from osfmodel.ledger.check import check
from osfmodel.ledger.results import Checked
from osfmodel.planning.scaling.audit import audit
from osfmodel.planning.scaling.scale import scale
from osfmodel.planning.tuning import tune
from tests.browser import Browser, browser, skip_or_fail
from tests.draws import examples, leave_to_long
from tests.kept import gathered, judged, keep_in, kept

# No test fails for the time that it takes: machines are busy at times.
settings.register_profile("any", deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("any"), derandomize=True)
# With CI the same examples each time, so that a change is judged by itself.
settings.load_profile("repeatable" if os.environ.get("CI") else "any")

os.environ["OSFMODEL_NO_CONFIG"] = "1"  # no test sees the osf.toml of whoever runs it; tests of it delete this
ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Say where results that take long are kept, and what is compiled where the user wants none beside the sources."""
    keep_in(config)
    if sys.dont_write_bytecode and config.pluginmanager.has_plugin("cacheprovider"):
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(config.cache.mkdir("bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix  # of processes that tests start


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for garbage neither while thousands of tests are collected, nor later among them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # tests make many objects and little garbage: an eighth of their time
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark long what the draws of tests marked ``covering`` leave out, before -m selects."""
    leave_to_long(items)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of published figures; tests that need it skip where OSFMODEL_DATA does not name it."""
    folder = os.environ.get("OSFMODEL_DATA", "")
    if not folder or not (Path(folder) / "sources.json").is_file():
        pytest.skip("OSFMODEL_DATA does not name the folder of published figures")
    return Path(folder)


@pytest.fixture(scope="session")
def checked() -> tuple[Checked, ...]:
    """The whole ledger, judged once."""
    return judged(*LEDGER)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for the tests of a module."""
    skip_or_fail()
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture
def kept_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that ``osf tune``, ``scale`` (audits too), ``report`` and ``check`` had are taken from what is kept."""

    def kept_check(sources: Sequence[str] = (), tolerance: float | None = None) -> tuple[Checked, ...]:
        listed = tolerance is None and LEDGER.keys() >= set(sources)
        return judged(*(sources or LEDGER)) if listed else check(sources, tolerance)

    monkeypatch.setattr("osfmodel.planning.scaling.audit.audit", partial(kept, audit))
    for command, function in (("tune", tune), ("scale", scale)):
        monkeypatch.setattr(f"osfmodel.cli.{command}.{command}", partial(kept, function))
    monkeypatch.setattr("osfmodel.cli.report.gather", gathered)
    monkeypatch.setattr("osfmodel.cli.check.check", kept_check)
    monkeypatch.setattr("osfmodel.cli.report.check", kept_check)


@pytest.fixture
def ideal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions without usual effects, for what holds without effects alone: as with --effect none."""
    monkeypatch.setattr("osfmodel.entities.files.usual_effects.usual_values", tuple)
    # What the ledger says without them must not be kept for tests that come later.
    monkeypatch.setattr("osfmodel.ledger.check._verdict", ledger_check._verdict.__wrapped__)


@pytest.fixture
def small_workload() -> Workload:
    """Three tensors; ready order c, b, a at 6, 8, 11 seconds."""
    layers = (
        Layer("a", 1.0, 3.0, 400),
        Layer("b", 1.0, 2.0, 200),
        Layer("c", 2.0, 2.0, 100),
    )
    return Workload("small", layers, batch_size=8, update_time=0.5)


@pytest.fixture
def small_cluster() -> Cluster:
    """A ring with easy numbers: 2 workers pay 0.2 s + 0.01 s per byte."""
    return Cluster("easy", "ring", between_nodes=Link(0.1, 0.01))


@pytest.fixture
def table_cluster() -> Cluster:
    """Measured with 2 and 4 workers."""
    return Cluster(
        "measured",
        "tabulated",
        gpus_per_node=4,
        nodes=1,
        tables=(Table(2, (100, 1000), (0.1, 0.4)), Table(4, (100, 1000), (0.2, 0.6))),
    )


def gradients(ready: Sequence[float], sizes: Sequence[int], dtypes: Sequence[str] | None = None) -> Gradients:
    """Gradients by their numbers alone."""
    return Gradients(
        tuple(f"t{i}" for i in range(len(sizes))),
        tuple(ready),
        tuple(sizes),
        tuple(dtypes or ["float32"] * len(sizes)),
        tuple(ready),
    )


def workload_of(ready: Sequence[float], sizes: Sequence[int], dtypes: Sequence[str] | None = None) -> Workload:
    """A workload without forward time whose gradients become ready at these times, in this order."""
    kinds = dtypes or ["float32"] * len(sizes)
    steps = [after - before for before, after in zip([0, *ready], ready, strict=False)]
    layers = [Layer(f"t{i}", 0, steps[i], sizes[i], kinds[i]) for i in range(len(sizes))]
    return Workload("made", tuple(reversed(layers)))
