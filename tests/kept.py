"""Results that take long and that several tests ask for: computed once, and kept on disk for all processes and runs.

A result is found by the content of the package and its profiles, the versions that it runs on, and the arguments: what
is kept is never stale. Without pytest's cache (``-p no:cacheprovider``) nothing is kept on disk.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

import osfmodel as osf
from osfmodel.entities.files import usual_effects
from osfmodel.ledger.check import check
from osfmodel.ledger.results import Checked
from osfmodel.planning.gathering import ReportRequest, gather
from osfmodel.planning.report import Report

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
COMPUTING = ("numpy", "scipy", "cvxpy", "highspy", "msgspec")
"""Packages that results may depend on."""
folders: list[Path] = []
"""The folder of this content, once pytest has said where."""
here: dict[bytes, object] = {}
"""Results that this process has asked for."""


@cache
def content() -> str:
    """A hash of all that results depend on besides their arguments."""
    found = sha256(repr([sys.version, *map(version, COMPUTING)]).encode())
    for path in sorted(path for name in ("osfmodel", "profiles") for path in (ROOT / name).rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            found.update(f"\0{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def keep_in(config: pytest.Config) -> None:
    """Keep results in pytest's cache, and remove those of another content."""
    if config.pluginmanager.has_plugin("cacheprovider"):
        kept_there = config.cache.mkdir("kept")
        folders[:] = [kept_there / content()]
        for other in kept_there.iterdir():
            if other != folders[0]:
                shutil.rmtree(other, ignore_errors=True)
        folders[0].mkdir(exist_ok=True)


def kept(function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function of the package for these arguments; computed if it is not kept."""
    given = sorted((name, value) for name, value in os.environ.items() if name.startswith("OSFMODEL_"))
    asked = pickle.dumps((function.__module__, function.__qualname__, arguments, given, usual_effects.usual_values()))
    if asked not in here:
        here[asked] = _on_disk(sha256(asked).hexdigest()[:32], function, arguments)
    return cast("T", here[asked])


def _on_disk(name: str, function: Callable[..., object], arguments: tuple[object, ...]) -> object:
    """The result in the file of this name, or that of the function, which is written there."""
    path = folders[0] / name if folders else None
    if path is not None and path.exists():
        return pickle.loads(path.read_bytes())
    found = function(*arguments)
    if path is not None:  # written whole: another process may read it at any time
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps(found))
        part.replace(path)
    return found


def tuned(workload: str, cluster: str, workers: int | tuple[int, ...], target: str) -> osf.Tuning:
    """The tuning of what comes with osfmodel."""
    return kept(_tune, workload, cluster, workers, target)


def gathered(request: ReportRequest) -> Report:
    """The content of a report, which the words of the user do not change."""
    return replace(kept(gather, replace(request, inputs=())), inputs=request.inputs)


def judged(*sources: str) -> tuple[Checked, ...]:
    """Sources of the ledger, each kept by itself, so that processes that need them at the same time share the work."""
    return tuple(kept(check, (name,))[0] for name in sources)


def _tune(workload: str, cluster: str, workers: int | tuple[int, ...], target: str) -> osf.Tuning:
    return osf.tune(osf.load_workload(workload), osf.load_cluster(cluster), workers, target)
