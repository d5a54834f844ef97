"""Pictures of a report, as data: the iteration under each plan, measured steps, curves, and runs of a band's sources.

The terminal, PNG and SVG, the HTML report and the Chrome trace all show these and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from osfmodel.ledger.results import Checked
from osfmodel.planning.report import Report, Scaling, SizeCurve
from osfmodel.show.pictures.gantt import Gantt, measured, predicted
from osfmodel.show.pictures.scatter import Scatter, scatter

Curve = Scaling | SizeCurve | Scatter
"""A curve below the iterations; :data:`osfmodel.show.curves.CURVES` draws it."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """All pictures of a report.

    predicted: a chart for each prediction of ``report.comparison``, in its order
    measured:  a chart for each of ``report.measured``
    curves:    those that have points, one of each type at most
    """

    report: Report
    predicted: tuple[Gantt, ...] = field(repr=False)
    measured: tuple[Gantt, ...] = field(repr=False)
    curves: tuple[Curve, ...] = field(repr=False)

    @property
    def main(self) -> tuple[Gantt, ...]:
        """The charts to show if there is no room for all: default, tuned, as traced, and the measured ones."""
        return (*(self.predicted[place] for place in dict.fromkeys((0, 1, self.report.shown))), *self.measured)


def pictures(report: Report, evidence: Iterable[Checked] = ()) -> Pictures:
    """The pictures of ``report``, and of the runs behind its error bands."""
    runs = scatter(evidence)
    curves: tuple[Curve | None, ...] = (report.scaling, report.sizes, runs if runs.clouds else None)
    return Pictures(
        report,
        tuple(map(predicted, report.comparison.predictions)),
        tuple(measured(seen.step, seen.name) for seen in report.measured),
        tuple(curve for curve in curves if curve is not None),
    )
