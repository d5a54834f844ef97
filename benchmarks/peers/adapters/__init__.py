"""Predictors beside ours. To add one: a module here with a Peer, and its line in PEERS of table.py.

A predictor is asked with its own defaults for a run as its user would describe it: nothing is fitted, and what it does
not model is not added. A run that it cannot express raises UnsaidError with the reason.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from rows import PeerRow

SOURCES = Path(__file__).resolve().parents[1] / "sources"
"""Folder of repositories that are in no package index; git ignores it."""


class UnsaidError(Exception):
    """A predictor cannot express a run: its one argument says why."""


class MissingError(Exception):
    """A predictor is not installed: its one argument says what to do."""


class Answer(NamedTuple):
    """Seconds of a step, bytes of memory of the fullest GPU, and the band of the seconds; None for what is not told."""

    seconds: float | None = None
    memory: float | None = None
    band: tuple[float, float] | None = None


class Peer(NamedTuple):
    """A predictor.

    open:   () -> its version, once it was imported; raises MissingError
    ask:    (run) -> Answer; raises UnsaidError
    how:    how it is asked, and what it says
    memory: what its memory counts; "" for a predictor of time
    """

    open: Callable[[], str]
    ask: Callable[[PeerRow], Answer]
    how: str
    memory: str = ""


def installed(package: str, remedy: str = "") -> str:
    """The version of a package. Raises MissingError."""
    try:
        return version(package)
    except PackageNotFoundError:
        raise MissingError(remedy or "pip install '.[peers]'") from None


def cloned(name: str, url: str, commit: str, holds: str) -> Path:
    """The folder of a repository under SOURCES. Raises MissingError unless it has the file ``holds``."""
    folder = SOURCES / name
    if not (folder / holds).exists():
        raise MissingError(f"git clone {url} benchmarks/peers/sources/{name}, at commit {commit[:12]}")
    return folder


def need(said: bool, reason: str) -> None:
    """Raises UnsaidError with the reason unless it can be ``said``."""
    if not said:
        raise UnsaidError(reason)


def has_module(name: str) -> bool:
    """Whether a module can be imported."""
    return importlib.util.find_spec(name) is not None
