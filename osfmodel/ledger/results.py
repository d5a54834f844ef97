"""Results of comparing runs with predictions: rows, verdicts, plans side by side, checked sources."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from osfmodel.engine.bands import quantile
from osfmodel.entities.measurement import DEFAULTS, SATURATED
from osfmodel.entities.records import dataclass, field
from osfmodel.ledger.as_used import Used, UsedSummary, summary_of

UNSTEADY = 0.05
"""Largest relative difference of repeats, slowest over fastest, that still count."""
BUSY = f"ranks used more than {SATURATED:.0%} of the cores: listed, not counted"
"""Note of runs in which communication waited for cores."""


TIME, MEMORY = "time", "memory"
"""Quantities of a source: times or ratios of them, or bytes."""


class Row(NamedTuple):
    """One run beside its prediction.

    label:     the run's name for people
    measured:  seconds per iteration, a ratio of two such times, or bytes
    predicted: the same from the model; None if it is not predicted, and ``note`` gives the reason
    fitted:    whether a parameter was fitted on it, so that its error is not a prediction error
    is_time:   whether it is a time of a step, not a ratio or bytes
    steady:    whether the measurement repeats well enough to judge by; if not, ``note`` says so
    own:       whether workload and cluster were imported from the same file as the run: its error is of
               self-consistency, not of prediction
    """

    label: str
    measured: float
    predicted: float | None
    fitted: bool = False
    note: str = ""
    is_time: bool = False
    steady: bool = True
    own: bool = False

    @property
    def status(self) -> str:
        """``predicted`` if its error counts, else the reason: ``not predicted``, ``fitted`` or ``unsteady``."""
        if self.predicted is None:
            return "not predicted"
        return "fitted" if self.fitted else "predicted" if self.steady else "unsteady"

    @property
    def counts(self) -> bool:
        """Whether the source is judged by its error."""
        return self.status == "predicted"

    @property
    def error(self) -> float | None:
        """predicted / measured - 1, or None."""
        return None if self.predicted is None else self.predicted / self.measured - 1


class Verdict(NamedTuple):
    """The rows of a source, and in one sentence the parameters fitted and on which rows."""

    rows: tuple[Row, ...]
    fitted_on: str
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanRuns:
    """All repeats of one plan.

    measured:  median over the repeats of their medians, in seconds
    spread:    how much longer the slowest repeat took than the fastest, as a fraction
    predicted: seconds; None without a prediction, and ``note`` gives the reason
    steady:    whether the repeats agree well enough to judge by
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
    """The plans, with the default, of one workload, cluster and worker count that ran under the same conditions."""

    workload: str
    cluster: str
    workers: int
    conditions: tuple[tuple[str, str], ...]
    turns: tuple[PlanRuns, ...]

    @property
    def scale(self) -> str | None:
        """Factor by which a replay's computation was scaled."""
        return dict(self.conditions).get("scale")

    @property
    def default(self) -> PlanRuns:
        """The turns of the default plan."""
        return next(turns for name in DEFAULTS for turns in self.turns if turns.plan == name)

    def measured_speed_up(self, turns: PlanRuns) -> float:
        """Measured speed-up of a plan over the default."""
        return self.default.measured / turns.measured

    def predicted_speed_up(self, turns: PlanRuns) -> float | None:
        """Predicted speed-up of a plan over the default; None if either is not predicted."""
        default = self.default.predicted
        return None if default is None or turns.predicted is None else default / turns.predicted


class UsedOverall(NamedTuple):
    """Sources of real machines as used: medians of their median |error| and bias, and the mean of their coverage."""

    sources: int
    median_abs_error: float
    bias: float
    coverage: float


@dataclass(frozen=True)
class Checked:
    """A source and the errors of its predictions, as fractions; None if nothing is predicted.

    n:         predicted, steady rows on which nothing was fitted; the errors are over these
    bias:      the median signed error
    tolerance: the largest median |error| that passes, None if none is recorded
    beside:    plans that were measured beside the default, in a file written by osf run
    listed:    whether it is a source of the ledger; some of these hold runs that cannot be predicted
    compares:  TIME or MEMORY
    used:      the runs as a user predicts them (``ledger.as_used``), with their error bands
    remarks:   reasons for errors that are not the model's, such as a profile of another load
    """

    source: str
    rows: tuple[Row, ...] = field(repr=False)
    fitted_on: str
    tolerance: float | None
    beside: tuple[Beside, ...] = ()
    listed: bool = False
    compares: str = TIME
    used: tuple[Used, ...] = field(default=(), repr=False)
    remarks: tuple[str, ...] = ()

    @cached_property
    def as_used(self) -> UsedSummary | None:
        """The runs as used, in figures; None without any."""
        return summary_of(self.source, self.used)

    @property
    def emulated(self) -> bool:
        """Whether it is a source of the ledger whose runs were between emulated hosts."""
        return self.listed and self.source.startswith("emulated-")

    @property
    def errors(self) -> list[float]:
        """Signed errors of the rows that count."""
        return [row.error for row in self.rows if row.error is not None and row.counts]

    @property
    def n(self) -> int:
        """Number of rows that count."""
        return len(self.errors)

    @property
    def fitted(self) -> int:
        """Number of rows that a parameter was fitted on."""
        return sum(row.fitted for row in self.rows)

    @property
    def own(self) -> int:
        """Number of rows that count but were put together from their own run's figures: no predictions."""
        return sum(row.own and row.counts for row in self.rows)

    @property
    def self_consistency(self) -> bool:
        """Whether all rows that count are of this kind, so that the errors say nothing about predictions."""
        return 0 < self.own == self.n

    @property
    def unsteady(self) -> int:
        """Number of rows whose measurement does not repeat well enough to count."""
        return sum(row.status == "unsteady" for row in self.rows)

    @property
    def busy(self) -> int:
        """Number of rows that do not count because the ranks kept the cores busy."""
        return sum(row.note == BUSY for row in self.rows)

    @property
    def not_predicted(self) -> int:
        """Number of rows that are only listed."""
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
        """Median signed error; above 0 if predictions are too slow."""
        return quantile(self.errors, 0.5)

    @property
    def passed(self) -> bool:
        """Whether runs were predicted, or none could be, and the median |error| is within the tolerance.

        Unsteady rows cannot fail a source, but do not meet a tolerance either.
        """
        if self.median_abs_error is None:
            return self.tolerance is None and (self.listed or self.unsteady > 0)
        return self.tolerance is None or self.median_abs_error <= self.tolerance

    @property
    def reasons(self) -> dict[str, int]:
        """Reasons why runs are not predicted, with the number of runs for each."""
        found: dict[str, int] = {}
        for row in self.rows:
            if row.predicted is None:
                found[row.note] = found.get(row.note, 0) + 1
        return found
