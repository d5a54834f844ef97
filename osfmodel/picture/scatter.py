"""Predicted against measured times of runs, source by source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from osfmodel.check import Checked


@dataclass(frozen=True, slots=True)
class Cloud:
    """The runs of one source that nothing was fitted on: (measured, predicted) in seconds."""

    source: str
    points: tuple[tuple[float, float], ...]
    median_abs_error: float | None


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
    """What the ledger or a file of runs holds. Ratios (rows without a regime) are left out: they are no times."""
    clouds = [Cloud(one.source, _points(one), one.median_abs_error) for one in checked]
    return Scatter(tuple(sorted((cloud for cloud in clouds if cloud.points), key=lambda cloud: -len(cloud.points))))


def _points(one: Checked) -> tuple[tuple[float, float], ...]:
    """Of the rows that count and are times."""
    return tuple(
        (row.measured, row.predicted)
        for row in one.rows
        if row.predicted is not None and row.counts and row.regime is not None
    )
