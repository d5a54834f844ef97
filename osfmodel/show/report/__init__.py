"""Pictures of a report, as data: the iteration under each plan, measured steps, curves, and runs behind error bands.

The terminal, PNG and SVG, the HTML report and the Chrome trace all show these and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import union
from osfmodel.ledger.results import Checked
from osfmodel.planning.report import Report, Scaling, SizeCurve
from osfmodel.show.checks.scatter import Scatter, scatter
from osfmodel.show.report.gantt import Bar, Gantt, measured, predicted

Curve = Scaling | SizeCurve | Scatter
"""A curve below the iterations; :data:`osfmodel.show.report.curves.CURVES` draws it."""


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


TOUCHING = 1e-9
"""Fraction of the iteration below which two bars have no gap between them."""
KERNELS = 1000
"""Parts into which a measured step is cut to merge short bars of computation."""
ADJOINING = 0.25
"""Widest gap within a merged bar, as a fraction of one of the parts."""
ALIKE = 0.1
"""Largest difference of the busy parts of two neighbours that are merged."""
Follows = Callable[[Bar, Bar], bool]
"""Whether a bar joins the merged bar before it."""


def coarse(gantt: Gantt, cells: int | None = None) -> Gantt:
    """The same time in fewer bars; a bar of several is busy for part of its duration.

    Computation of one kind and bucket without a gap is one bar. Measured computation, and with ``cells`` every lane, is
    cut into parts of the iteration: bars of one kind that are shorter than a part and begin in the same one are merged,
    so that a lane keeps at most twice as many bars as parts. Without ``cells`` collectives are not merged.
    """
    lanes = []
    for lane in gantt.lanes:
        bars = _runs(lane.bars, lambda last, bar: _touch(last, bar, gantt.end * TOUCHING))
        sends = any(bar.sends for bar in bars)
        least = KERNELS if gantt.measured and not sends else None
        parts = min((count for count in (cells, least) if count), default=None)
        if parts is not None:
            bars = _rough(bars, gantt.end / parts)
        lanes.append(replace(lane, bars=tuple(bar for bar in bars if bar.duration or bar.sends)))
    return replace(gantt, lanes=tuple(lanes))


def _rough(bars: Sequence[Bar], cell: float) -> list[Bar]:
    """Merge short bars that begin in the same cell, then similar neighbours."""

    def one_cell(last: Bar, bar: Bar) -> bool:
        short = last.duration < cell and bar.duration < cell
        return short and _kind(last) == _kind(bar) and int(last.start / cell) == int(bar.start / cell)

    def adjoin(last: Bar, bar: Bar) -> bool:
        near = bar.start - last.end <= ADJOINING * cell and abs(last.coverage - bar.coverage) <= ALIKE
        return near and not bar.sends and _kind(last) == _kind(bar) and last.bucket == bar.bucket

    return _runs(_runs(bars, one_cell), adjoin)


def _kind(bar: Bar) -> tuple[str, bool]:
    return bar.kind, bar.sends


def _touch(last: Bar, bar: Bar, gap: float) -> bool:
    same = not bar.sends and _kind(last) == _kind(bar) and last.bucket == bar.bucket
    return same and bar.start - last.end <= gap


def _runs(bars: Sequence[Bar], follows: Follows) -> list[Bar]:
    """Merge each bar with those that follow it, as long as ``follows`` allows; it is given the merged bar so far
    and the next bar."""
    runs: list[list[Bar]] = []
    so_far: Bar | None = None
    for bar in bars:
        if so_far is not None and follows(so_far, bar):
            runs[-1].append(bar)
            busy = so_far.busy_time + bar.busy_time
            so_far = replace(so_far, end=max(so_far.end, bar.end), busy=busy)
        else:
            runs.append([bar])
            so_far = bar
    return [_one(run) for run in runs]


def _one(run: Sequence[Bar]) -> Bar:
    """One bar for all of a run; properties that differ within it become None."""
    first = run[0]
    if len(run) == 1:
        return first
    end, busy = max(bar.end for bar in run), plain_sum(bar.busy_time for bar in run)
    sizes = [bar.bytes for bar in run]
    layers = [layer for bar in run for layer in bar.layers]
    return replace(
        first,
        end=end,
        layers=tuple(dict.fromkeys(layers)) if first.sends else tuple(layers),
        bytes=sum(size for size in sizes if size is not None) if None not in sizes else None,
        bucket=first.bucket if len({bar.bucket for bar in run}) == 1 and not first.sends else None,
        ready=None,
        exposed=union(part for bar in run for part in bar.exposed),
        busy=busy if busy < (1 - TOUCHING) * (end - first.start) else None,
        parts=sum(bar.parts for bar in run),
    )
