"""A scaling curve: the best strategy at each number of workers, and answers to inverse questions, in every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from osfmodel.counting import in_words
from osfmodel.counting.words import parse_words, with_parts
from osfmodel.entities.display import how_many, show_bytes, show_predicted_time, show_share
from osfmodel.entities.errors import UsageError
from osfmodel.planning.results import Tuning
from osfmodel.planning.scaling.anchors import NAMES, Taught
from osfmodel.planning.scaling.curve import Rescue, ScaleCurve, ScalePoint
from osfmodel.planning.scaling.goals import Answer, Cheapest
from osfmodel.show.document import Result
from osfmodel.show.plans import band_column, three_digits, what_if_part
from osfmodel.show.table import Column, Sheet, amount, column, csv_row, json_row, listed_rows
from osfmodel.show.terminal import Console, chart_width, print_fitting, show_notes, show_title
from osfmodel.show.tuned import Lines
from osfmodel.solve.verdicts import NO, YES


def _checkpointing(name: str) -> str | None:
    """The activation checkpointing that a workload in words says; None for a profile."""
    return parse_words(name).setting.checkpointing if in_words(name) else None


POINT: tuple[Column[ScalePoint], ...] = (
    column("workers", "GPUs", lambda point: point.workers),
    column("strategy", "strategy", lambda point: point.best.name),
    column("step_time_s", "step", lambda point: point.time, show_predicted_time),
    band_column(lambda point: point.band, "none"),
    column("samples_per_s", "samples/s", lambda point: point.samples_per_s, amount),
    column("tokens_per_s", "tokens/s", lambda point: point.tokens_per_s, amount),
    column(
        "tokens_per_s_per_gpu",
        "per GPU",
        lambda point: point.rate_per_gpu if point.tokens_per_s is not None else None,
        amount,
    ),
    column("mfu", "MFU", lambda point: point.mfu, show_share),
    column("scaling_factor", "scaling", lambda point: point.scaling_factor, three_digits),
    column(
        "peak_memory_bytes",
        "memory",
        lambda point: None if point.best.peak is None else point.best.peak.bytes,
        show_bytes,
    ),
    column("reserved_memory_bytes", None, lambda point: point.reserved),
    column("fits", "fits", lambda point: point.fits),
    column("fits_chance", None, lambda point: point.best.chance),
    column("cost_per_hour", "per hour", lambda point: point.cost_per_hour, amount),
    column("training_hours", "hours", lambda point: point.hours, amount),
    column("training_cost", "cost", lambda point: point.cost, amount),
)
"""Columns of a point."""
OPTIONS: tuple[Column[ScalePoint], ...] = (
    column("tp", "TP", lambda point: point.groups.tensor),
    column("cp", "CP", lambda point: point.groups.context),
    column("pp", "PP", lambda point: point.groups.pipeline),
    column("vpp", "VPP", lambda point: point.groups.chunks),
    column("ep", "EP", lambda point: point.groups.expert),
    column("batch_size", "batch", lambda point: point.workload.batch_size),
    column("accumulate", "micro-batches", lambda point: point.accumulated),
    column("checkpointing", "ac", lambda point: _checkpointing(point.workload.name)),
)
RESCUES: tuple[Column[Rescue], ...] = (
    column("workers", None, lambda one: one.workers),
    column("change", None, lambda one: one.said),
    column("rate_lost", None, lambda one: one.lost),
    column("strategy", None, lambda one: one.point.best.name),
    column("step_time_s", None, lambda one: one.point.time),
    column("peak_memory_bytes", None, lambda one: one.point.best.peak and one.point.best.peak.bytes),
    column("fits_chance", None, lambda one: one.point.best.chance),
    column("command", None, lambda one: one.command),
)
"""Columns of a change that makes a step fit, in JSON alone."""
COMBINATION = (*POINT, *OPTIONS, column("best", "", lambda point: point.taken, {True: "best", False: ""}.__getitem__))
"""Columns of a combination of options."""
EMPTY = tuple(one.key for one in POINT if one.key not in ("workers", "strategy", "step_time_s", "error_band"))
"""Keys of columns that people do not see where no point has a value."""


def curve_title(curve: ScaleCurve) -> str:
    """The workload, the cluster, and what was changed, unless each number of GPUs has changes of its own."""
    name = f"{curve_words(curve)} on {curve.cluster.name}"
    return f"{name}{f' with {curve.changes}' if curve.changes else ''}{': the best of each' if curve.varied else ''}"


def curve_words(curve: ScaleCurve) -> str:
    """The workload, without words that each number of GPUs has of its own."""
    return _shared_words(curve) if curve.varied else curve.workload.name


def _shared_words(curve: ScaleCurve) -> str:
    """The workload without words of which combinations have a column."""
    words, keys = curve.workload.name, {one.key for one in combination_columns(curve.combinations)}
    return with_parts(words, batch="", ac="") if in_words(words) and keys & {"batch_size", "checkpointing"} else words


def combination_columns(points: Sequence[ScalePoint]) -> list[Column[ScalePoint]]:
    """The columns of combinations that say something: of options those that differ."""
    differing = [one for one in OPTIONS if len({one.value(point) for point in points}) > 1]
    workers, *others = (replace(one, only=None) for one in told_columns(points))
    return [workers, *differing, *others, COMBINATION[-1]]


def told_columns(points: Sequence[ScalePoint]) -> list[Column[ScalePoint]]:
    """The columns that say something: of rates those of tokens, if samples have tokens, and none that is empty."""
    tokens = any(point.tokens_per_s is not None for point in points)
    hidden = {"samples_per_s"} if tokens else set()
    if all(point.fits in (None, YES) for point in points):
        hidden.add("fits")
    return [
        one
        for one in POINT
        if one.key not in hidden and (one.key not in EMPTY or any(one.value(point) is not None for point in points))
    ]


def learned_part(learned: Taught) -> dict[str, Any]:
    """Factors that several anchors taught, deviations of their logarithms, and misses by number of GPUs."""
    return {
        **{f"{name}_factor": one for name, one in zip(NAMES, learned.factors, strict=True)},
        **{f"{name}_spread": one for name, one in zip(NAMES, learned.spreads, strict=True)},
        "anchors": [{"workers": workers, "error": miss} for workers, miss in learned.misses],
        "predicted_from_others": [{"workers": workers, "error": miss} for workers, miss in learned.held],
    }


class RateAt(NamedTuple):
    """The rate of each GPU at a number of workers, and the ends of its error band, which are the rate without one."""

    workers: int
    strategy: str
    rate: float
    low: float
    high: float


def rates(points: Sequence[ScalePoint]) -> list[RateAt]:
    """The rates of the points; the strategy of one that does not fit is said so."""
    found = []
    for point in points:
        rate, band = point.rate_per_gpu, point.band
        below, above = (0.0, 0.0) if band is None else (band.below, band.above)
        name = f"{point.best.name}{' (does not fit)' * (point.fits == NO)}"
        found.append(RateAt(point.workers, name, rate, rate / (1 + above), rate / (1 + below)))
    return found


def unit_of(points: Sequence[ScalePoint]) -> str:
    """The unit of the rates."""
    first = points[0]
    each = "tokens" if first.workload.sample_tokens else "samples" if first.samples else "steps"
    return f"{each}/s of each GPU"


class Scaled(Result):
    """A scaling curve, the answers to inverse questions, and a framework's settings at its last point, if asked for."""

    drawn = (".html", ".png", ".svg")

    def __init__(
        self,
        curve: ScaleCurve,
        answers: Sequence[Answer] = (),
        tuning: Tuning | None = None,
        lines: Lines | None = None,
        rescues: Sequence[Rescue] = (),
    ) -> None:
        self.curve, self.answers, self.tuning, self.lines, self.rescues = curve, answers, tuning, lines, rescues
        self.endings = None if lines is None else lines.endings

    def content(self) -> dict[str, Any]:
        curve = self.curve
        every = [json_row(COMBINATION, one) for one in curve.combinations]
        return {
            "workload": curve.workload.name,
            "cluster": curve.cluster.name,
            "limit_bytes": None if curve.limit is None else curve.limit.bytes,
            **({} if curve.anchored is None else {"anchor_factor": curve.anchored}),
            **({} if curve.learned is None else {"learned": learned_part(curve.learned)}),
            **what_if_part(curve.what_if),
            **({"groups": curve.groups.document} if curve.groups.document else {}),
            "points": [json_row(POINT, point) for point in curve.points],
            **({"combinations": every} if every else {}),
            "strategies": curve.turns,
            "answers": [
                {
                    "goal": one.goal,
                    "asks": one.asks,
                    "workers": one.at,
                    **one.values,
                    "words": one.words,
                    **({} if one.present is None else {"present_bytes_per_s_per_gpu": one.present}),
                }
                for one in self.answers
            ],
            "remedies": [json_row(RESCUES, one) for one in self.rescues],
            **self._settings(),
            "notes": [*curve.warnings, *curve.notes],
        }

    def _settings(self) -> dict[str, Any]:
        if self.tuning is None:
            return {}
        return {"target": self.tuning.target, "config": self.tuning.config, "rendered": self.code("")}

    def code(self, ending: str) -> str:
        """The settings to paste, as a file with this ending has them. Raises UsageError if none were asked for."""
        if self.lines is None:
            raise UsageError(
                "there are no lines to paste without a framework: add --for TARGET, or write --format table"
            )
        return self.lines.written(ending)

    def rows(self) -> list[dict[str, Any]]:
        common = {"workload": self.curve.workload.name, "cluster": self.curve.cluster.name}
        found = [csv_row(COMBINATION, one) for one in self.curve.combinations]
        return [{**common, **row} for row in found or [csv_row(POINT, point) for point in self.curve.points]]

    def show(self, console: Console) -> None:
        curve = self.curve
        if curve.combinations:
            columns = combination_columns(curve.combinations)
            name = f"{_shared_words(curve)} on {curve.cluster.name}"
            show_title(console, f"{name}: {curve.listed} (best: the one to take)")
            strategy = [one.key for one in columns].index("strategy")
            print_fitting(console, columns, curve.combinations, words=(strategy, -1), leave_out=LEFT_OUT)
            console.print()
        show_title(console, curve_title(curve))
        points = list(curve.points)
        print_fitting(console, told_columns(points), points, words=(1,), leave_out=LEFT_OUT)
        console.print()
        _show_bars(console, points)
        show_title(console, curve.turns)
        if curve.learned is not None:
            console.print(curve.learned.sentence, markup=False)
        elif curve.anchored is not None:
            factor = f"{curve.anchored:.3g} times as long as counted or profiled"
            console.print(f"Computation takes {factor}, by the anchor.", markup=False)
        full = {point.best.peak.bytes: point for point in points if point.fits == NO and point.best.peak is not None}
        if full and curve.limit is not None:
            least = full[min(full)]
            console.print(f"On {least.workers} GPUs {least.lacking(curve.limit.bytes)}.", markup=False)
        for workers, rescues in groupby(self.rescues, lambda one: one.workers):
            own, gpus = list(rescues), how_many(workers, "GPU")
            console.print(f"To be sure that it fits on {gpus}, what costs least first:", markup=False)
            for one in own[:SHOWN]:
                console.print(f"  {one.words}\n    {one.command}", markup=False, soft_wrap=True)
        for answer in self.answers:
            show_title(console, answer.words)
        show_notes(console, curve.notes)
        if self.tuning is not None:
            last = self.curve.points[-1].workers
            show_title(console, f"\nSettings of {self.tuning.target} for {last} GPUs:\n")
            console.print(self.code(""), markup=False, soft_wrap=True)

    def sheet(self) -> Sheet:
        """The points, with the strategies in a sentence."""
        curve, points = self.curve, list(self.curve.points)
        table = listed_rows("", told_columns(points), points)
        return Sheet(curve_title(curve), [table], curve.turns, [*curve.warnings, *curve.notes])

    def warnings(self) -> list[str]:
        own = () if self.tuning is None else self.tuning.warnings
        return list(dict.fromkeys((*self.curve.warnings, *own)))


class ScaledMachines(Result):
    """Scaling curves on several clusters, and the cheapest machine for each goal."""

    def __init__(self, each: Sequence[Scaled], found: Sequence[Cheapest]) -> None:
        self.each, self.found = each, found

    def content(self) -> dict[str, Any]:
        return {
            "machines": [one.document() for one in self.each],
            "cheapest": [
                {
                    "goal": one.goal,
                    **{end: None if machine is None else machine._asdict() for end, machine in one.values.items()},
                    "price_per": "hour" if one.hourly else "training",
                    "words": one.words,
                }
                for one in self.found
            ],
        }

    def rows(self) -> list[dict[str, Any]]:
        return [row for one in self.each for row in one.rows()]

    def show(self, console: Console) -> None:
        for one in self.each:
            one.show(console)
            console.print()
        for said in filter(None, (self.ends, *(found.words for found in self.found))):
            show_title(console, said)

    @property
    def ends(self) -> str:
        """The cheapest and the fastest training, of steps that fit; "" without its length and prices."""
        found = [
            (point.cost, point.hours, f"{how_many(point.workers, 'GPU')} of {one.curve.cluster.name}")
            for one in self.each
            for point in one.curve.points
            if point.fits != NO and point.cost is not None and point.hours is not None
        ]
        if not found:
            return ""
        (cost, hours, where), fast = min(found), min(found, key=lambda one: one[1])
        told = f"{where}, {amount(cost)} in {amount(hours)} hours"
        if fast == (cost, hours, where):
            return f"For the whole training, cheapest and fastest: {told}."
        more = f"{fast[2]}, {amount(fast[0])} in {amount(fast[1])}"
        return f"For the whole training, cheapest: {told}; fastest: {more}."

    def warnings(self) -> list[str]:
        return list(dict.fromkeys(warning for one in self.each for warning in one.warnings()))


SHOWN = 4
"""Remedies that people see for each number of GPUs."""
LEFT_OUT = ("per hour", "memory", "samples/s", "MFU")
"""Columns to leave out on a narrow terminal, the first one first."""
MARGIN = 30


def _show_bars(console: Console, points: list[ScalePoint]) -> None:
    """A bar for the rate of each GPU, against the best, with the error band as a line."""
    from rich.text import Text

    found = rates(points)
    if len(found) < 2:
        return
    most, first = max(one.high for one in found), found[0]
    width = chart_width(console, MARGIN)
    unit = unit_of(points)
    console.print(f"{unit[:1].upper()}{unit[1:]}, with the error band; against {first.workers} GPUs", style="bold")
    for one, point in zip(found, points, strict=True):
        low, full, high = (round(rate / most * width) for rate in (one.low, one.rate, one.high))
        row = Text(f"{one.workers:>7}  ")
        if point.band is None:
            row.append("░" * full + " " * (width - full), style="cyan")
        else:
            row.append("█" * min(low, full), style="cyan")
            row.append("▒" * max(0, full - low), style="cyan")
            row.append("─" * max(0, high - full))
            row.append(" " * max(0, width - max(high, full)))
        console.print(row.append(f" {amount(one.rate):>6} {show_share(one.rate / first.rate):>6}"))
    console.print()
