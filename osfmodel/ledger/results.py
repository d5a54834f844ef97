"""What comes of holding measured runs against predictions: rows, verdicts, plans side by side, checked sources."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from osfmodel.engine.bands import Regime, quantile
from osfmodel.entities.measurement import DEFAULTS

UNSTEADY = 0.05
"""Repeats that differ by more, slowest over fastest, are not counted."""


TIME, MEMORY = "time", "memory"
"""What a source compares: seconds or ratios of them, or bytes."""


class Row(NamedTuple):
    """One run held against its prediction.

    label:     what was run, for a person
    measured:  seconds per iteration, a ratio of two such times, or bytes
    predicted: the same from the model; None where it is not predicted, and ``note`` says why
    fitted:    whether a parameter was fitted on it, so that its error is no prediction error
    regime:    how much is communicated over which kind of network; None where what is compared is no time
    steady:    whether the measurement repeats well enough to judge by; where not, ``note`` says so
    own:       whether workload and cluster were imported from the same file as the run: its error is of
               self-consistency, not of prediction
    """

    label: str
    measured: float
    predicted: float | None
    fitted: bool = False
    note: str = ""
    regime: Regime | None = None
    steady: bool = True
    own: bool = False

    @property
    def status(self) -> str:
        """``predicted`` where its error counts; else why not: ``not predicted``, ``fitted`` or ``unsteady``."""
        if self.predicted is None:
            return "not predicted"
        return "fitted" if self.fitted else "predicted" if self.steady else "unsteady"

    @property
    def counts(self) -> bool:
        """Whether its error is one of those that its source is judged by."""
        return self.status == "predicted"

    @property
    def error(self) -> float | None:
        """predicted / measured - 1, or None."""
        return None if self.predicted is None else self.predicted / self.measured - 1


class Verdict(NamedTuple):
    """The rows of a source, and in one sentence what was fitted on which of them."""

    rows: tuple[Row, ...]
    fitted_on: str


@dataclass(frozen=True, slots=True)
class PlanRuns:
    """All repeats of one plan.

    measured:  median over the repeats of their medians, in seconds
    spread:    how much the slowest repeat took longer than the fastest, as a fraction
    predicted: seconds; None where there is no prediction, and ``note`` says why
    steady:    whether it is to be judged by
    """

    plan: str
    repeats: int
    measured: float
    spread: float
    predicted: float | None
    note: str = ""
    steady: bool = True

    @property
    def error(self) -> float | None:
        """predicted / measured - 1, or None."""
        return None if self.predicted is None else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Beside:
    """The plans of one workload, cluster and worker count that were run under the same conditions, the default too."""

    workload: str
    cluster: str
    workers: int
    conditions: tuple[tuple[str, str], ...]
    turns: tuple[PlanRuns, ...]

    @property
    def scale(self) -> str | None:
        """By what a replay's computation was scaled."""
        return dict(self.conditions).get("scale")

    @property
    def default(self) -> PlanRuns:
        """The turns of the default plan."""
        return next(turns for name in DEFAULTS for turns in self.turns if turns.plan == name)

    def measured_speed_up(self, turns: PlanRuns) -> float:
        """How many times as fast as the default a plan was."""
        return self.default.measured / turns.measured

    def predicted_speed_up(self, turns: PlanRuns) -> float | None:
        """How many times as fast as the default a plan is predicted to be; None where either is not predicted."""
        default = self.default.predicted
        return None if default is None or turns.predicted is None else default / turns.predicted


@dataclass(frozen=True, slots=True)
class Checked:
    """A source and how far predictions are from it. Errors are fractions, None where nothing is predicted.

    n:         rows that are predicted, steady, and on which nothing was fitted; the errors are over these
    bias:      the median signed error
    tolerance: the median |error| that must not be exceeded, None where none is recorded
    beside:    plans that were measured beside the default, in a file as osf run writes it
    listed:    whether it is a source of the ledger, some of which hold runs that cannot be predicted
    compares:  TIME or MEMORY
    """

    source: str
    rows: tuple[Row, ...] = field(repr=False)
    fitted_on: str
    tolerance: float | None
    beside: tuple[Beside, ...] = ()
    listed: bool = False
    compares: str = TIME

    @property
    def errors(self) -> list[float]:
        """Signed errors of the rows that count."""
        return [row.error for row in self.rows if row.error is not None and row.counts]

    @property
    def n(self) -> int:
        """How many rows count."""
        return len(self.errors)

    @property
    def fitted(self) -> int:
        """Rows that a parameter was fitted on."""
        return sum(row.fitted for row in self.rows)

    @property
    def own(self) -> int:
        """Rows that count and were put together out of the figures of the very run: no predictions."""
        return sum(row.own and row.counts for row in self.rows)

    @property
    def self_consistency(self) -> bool:
        """Whether all rows that count are such, so that the errors say nothing of predictions."""
        return 0 < self.own == self.n

    @property
    def unsteady(self) -> int:
        """Rows whose measurement does not repeat well enough to count."""
        return sum(row.status == "unsteady" for row in self.rows)

    @property
    def not_predicted(self) -> int:
        """Rows that are listed only."""
        return sum(row.predicted is None for row in self.rows)

    @property
    def median_abs_error(self) -> float | None:
        """Median |error|."""
        return quantile([abs(error) for error in self.errors], 0.5)

    @property
    def p90_abs_error(self) -> float | None:
        """90th percentile of |error|."""
        return quantile([abs(error) for error in self.errors], 0.9)

    @property
    def worst_abs_error(self) -> float | None:
        """Largest |error|."""
        return quantile([abs(error) for error in self.errors], 1.0)

    @property
    def bias(self) -> float | None:
        """Median signed error: above 0 where predictions are too slow."""
        return quantile(self.errors, 0.5)

    @property
    def passed(self) -> bool:
        """Whether something is predicted, or nothing could be, and the median |error| is within the tolerance.

        What does not repeat cannot fail, but meets no tolerance either.
        """
        if self.median_abs_error is None:
            return self.tolerance is None and (self.listed or self.unsteady > 0)
        return self.tolerance is None or self.median_abs_error <= self.tolerance

    @property
    def reasons(self) -> dict[str, int]:
        """Why runs are not predicted, and how many for each reason."""
        found: dict[str, int] = {}
        for row in self.rows:
            if row.predicted is None:
                found[row.note] = found.get(row.note, 0) + 1
        return found
