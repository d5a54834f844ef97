"""Predicted against measured times of runs, source by source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from osfmodel.entities.display import how_many
from osfmodel.ledger.results import Checked


@dataclass(frozen=True, slots=True)
class Cloud:
    """Runs of one source that were not fitted on: (measured, predicted) in seconds, at least one.

    ``own``: whether each prediction was put together from the figures of the very run.
    """

    source: str
    points: tuple[tuple[float, float], ...]
    own: bool = False

    @property
    def median_abs_error(self) -> float:
        """Median magnitude of predicted / measured - 1."""
        return median(abs(predicted / measured - 1) for measured, predicted in self.points)

    @property
    def name(self) -> str:
        """The source's name, marked if its errors say nothing about predictions."""
        return f"{self.source}, self-consistency, no prediction" if self.own else self.source

    @property
    def runs(self) -> str:
        """Number of runs and their median error."""
        return f"{how_many(len(self.points), 'run')}, median error {self.median_abs_error:.1%}"


@dataclass(frozen=True, slots=True)
class Scatter:
    """Clouds of points, the largest first, so that small ones are drawn on top."""

    clouds: tuple[Cloud, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest time; (0.1, 1) without points."""
        values = [value for cloud in self.clouds for point in cloud.points for value in point] or [0.1, 1.0]
        return min(values), max(values)


def scatter(checked: Iterable[Checked]) -> Scatter:
    """Clouds of the runs of the ledger or of a file. Ratios (rows that are no times) are left out: they are not times.

    Runs predicted from their own figures, which are not predictions, are a separate cloud.
    """
    clouds = [Cloud(one.source, _points(one, own), own) for one in checked for own in (False, True)]
    return Scatter(tuple(sorted((cloud for cloud in clouds if cloud.points), key=lambda cloud: -len(cloud.points))))


def _points(one: Checked, own: bool) -> tuple[tuple[float, float], ...]:
    """(Measured, predicted) of runs as used, or of rows that count and are times: those that are ``own``, or others."""
    if one.used and not own:
        return tuple((row.judged.measured, row.judged.predicted) for row in one.used)
    return tuple(
        (row.measured, row.predicted)
        for row in one.rows
        if row.predicted is not None and row.counts and row.is_time and row.own == own
    )
