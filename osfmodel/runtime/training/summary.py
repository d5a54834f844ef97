"""Summary and warnings of a finished ``osf run``: a line for each plan, and what is wrong with any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf, isnan
from statistics import median

from osfmodel.entities.display import show_time
from osfmodel.entities.measurement import DEFAULTS, Measurement

SAME_LOSS = 1e-4
"""Relative difference of losses below which two plans train alike: only sums in another order differ."""


def summary(runs: Sequence[Measurement]) -> str:
    """A line per plan: the median over its repeats, compared with the default."""
    times = {run.plan: [one.iteration_time for one in runs if one.plan == run.plan] for run in runs}
    lines = []
    for plan, found in times.items():
        run = next(run for run in runs if run.plan == plan)
        said = dict(run.conditions)
        count = len(said.get("buckets", "").split())
        buckets = f"{count} bucket{'' if count == 1 else 's'}" if count else said.get("collectives") or _settings(said)
        span = f"{show_time(min(found))} to {show_time(max(found))}"
        default = next((name for name in DEFAULTS if name in times), None)
        ratio = "" if default is None else _ratio(default, times[default], found)
        losses = f", losses {_in_words(run)}" if "loss_difference" in dict(run.conditions) else ""
        lines.append(f"{plan}: {buckets}, {show_time(median(found))} per iteration ({span}){ratio}{losses}\n")
    return "".join(lines)


def _settings(said: Mapping[str, str]) -> str:
    groups = len(said.get("sent", "").partition(": ")[2].split())
    return f"settings {said['settings']}" + (f" and {groups} groups" if groups else "")


def _ratio(name: str, default: Sequence[float], times: Sequence[float]) -> str:
    """A plan's time compared with the default's, and whether its turns differ by more than that."""
    ratio = median(default) / median(times)
    spread = max(max(found) / min(found) - 1 for found in (default, times))
    inside = f", which is inside the spread of {spread:.1%}" if 0 < abs(ratio - 1) <= spread else ""
    return f", {ratio:.3f} times as fast as {name}{inside}"


def notes(runs: Sequence[Measurement]) -> list[str]:
    """Notes about runs: other buckets than planned, other losses than the default's."""
    formed = [
        f"plan {run.plan!r}: {run.condition('buckets_as_planned').removeprefix('no: ')}"
        for run in runs
        if dict(run.conditions).get("buckets_as_planned", "yes") != "yes"
    ]
    losses = [f"plan {run.plan!r}: its losses {_in_words(run)}" for run in runs if apart_from_default(run)]
    return formed + losses


def _in_words(run: Measurement) -> str:
    """The losses compared with the default's, in words."""
    difference = _loss(run)
    if isnan(difference):
        return "cannot be compared with the default's: neither is finite"
    if isinf(difference):
        return "differ from the default's: one is finite, the other not"
    return f"differ from the default's by {difference:.2g}, relative"


def _loss(run: Measurement) -> float:
    return float(dict(run.conditions).get("loss_difference", "0"))


def apart_from_default(run: Measurement) -> bool:
    """Whether its losses differ from the default's: by 1e-4 or more, or beyond comparison."""
    return not _loss(run) <= SAME_LOSS  # nor is what cannot be compared alike
