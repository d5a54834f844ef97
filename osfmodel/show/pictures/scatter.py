"""Predicted against measured times of runs, source by source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from osfmodel.entities.units import how_many
from osfmodel.ledger.results import Checked


@dataclass(frozen=True, slots=True)
class Cloud:
    """The runs of one source that nothing was fitted on: (measured, predicted) in seconds, at least one.

    ``own``: whether what is called predicted was put together out of the figures of the very run.
    """

    source: str
    points: tuple[tuple[float, float], ...]
    own: bool = False

    @property
    def median_abs_error(self) -> float:
        """Of predicted / measured - 1, the median magnitude."""
        return median(abs(predicted / measured - 1) for measured, predicted in self.points)

    @property
    def name(self) -> str:
        """The source, and where errors say nothing of predictions, that."""
        return f"{self.source}, self-consistency, no prediction" if self.own else self.source

    @property
    def runs(self) -> str:
        """How many, and how far off."""
        return f"{how_many(len(self.points), 'run')}, median error {self.median_abs_error:.1%}"


@dataclass(frozen=True, slots=True)
class Scatter:
    """Clouds of points, the largest first, so that small ones are drawn on top."""

    clouds: tuple[Cloud, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest time; (0.1, 1) where there is no point."""
        values = [value for cloud in self.clouds for point in cloud.points for value in point] or [0.1, 1.0]
        return min(values), max(values)


def scatter(checked: Iterable[Checked]) -> Scatter:
    """What the ledger or a file of runs holds. Ratios (rows without a regime) are left out: they are no times.

    Runs under their own figures, which are no predictions, are a cloud by themselves.
    """
    clouds = [Cloud(one.source, _points(one, own), own) for one in checked for own in (False, True)]
    return Scatter(tuple(sorted((cloud for cloud in clouds if cloud.points), key=lambda cloud: -len(cloud.points))))


def _points(one: Checked, own: bool) -> tuple[tuple[float, float], ...]:
    """Of the rows that count and are times, those that are ``own`` or those that are not."""
    return tuple(
        (row.measured, row.predicted)
        for row in one.rows
        if row.predicted is not None and row.counts and row.regime is not None and row.own == own
    )
