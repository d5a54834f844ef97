"""Predicted against measured: the error of every run of the ledger, and of each source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from osfmodel import profiles
from osfmodel.bands import quantile
from osfmodel.errors import OsfError, UsageError
from osfmodel.ledger import LEDGER, Row, Verdict
from osfmodel.ledger.recipe import not_predicted, row_of
from osfmodel.measurement import Measurement
from osfmodel.measurements import load_measurements
from osfmodel.plans import named_plan
from osfmodel.predict import price


@dataclass(frozen=True, slots=True)
class Checked:
    """A source and how far predictions are from it. Errors are fractions, None where nothing is predicted.

    n:         rows that are predicted and on which nothing was fitted; the errors are over these
    bias:      the median signed error
    tolerance: the median |error| that must not be exceeded, None where none is recorded
    """

    source: str
    rows: tuple[Row, ...] = field(repr=False)
    fitted_on: str
    tolerance: float | None

    @property
    def errors(self) -> list[float]:
        """Signed errors of the rows that count."""
        return [row.error for row in self.rows if row.error is not None and not row.fitted]

    @property
    def n(self) -> int:
        """How many rows count."""
        return len(self.errors)

    @property
    def fitted(self) -> int:
        """Rows that a parameter was fitted on."""
        return sum(row.fitted for row in self.rows)

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
        """Whether the median |error| is within the tolerance; a source with a tolerance must predict something."""
        if self.tolerance is None:
            return True
        return self.median_abs_error is not None and self.median_abs_error <= self.tolerance


def check(sources: Sequence[str] = (), tolerance: float | None = None) -> tuple[Checked, ...]:
    """Judge the named sources of the ledger, or measurement files; all of the ledger where none is named.

    ``tolerance`` replaces the recorded ones. A file's runs are predicted from the profiles and plans that they name.
    Raises UsageError for an unknown source, DataError for a file that cannot be used.
    """
    return tuple(_check(name, tolerance) for name in dict.fromkeys(sources or LEDGER))


def overall(checked: Sequence[Checked]) -> tuple[float | None, float | None]:
    """The medians over the sources of their median and of their 90th percentile."""
    pairs = [(one.median_abs_error, one.p90_abs_error) for one in checked]
    known = [(middle, high) for middle, high in pairs if middle is not None and high is not None]
    if not known:
        return None, None
    return median(middle for middle, _ in known), median(high for _, high in known)


def _check(name: str, tolerance: float | None) -> Checked:
    recipe = LEDGER.get(name)
    if recipe is None and not (name.endswith(".json") or Path(name).is_file()):
        raise UsageError(f"unknown source {name!r}: known are {', '.join(LEDGER)}, or give a measurement file")
    verdict = _by_name(load_measurements(Path(name))) if recipe is None else recipe.judge(load_measurements(name))
    recorded = None if recipe is None else recipe.tolerance
    return Checked(name, verdict.rows, verdict.fitted_on, recorded if tolerance is None else tolerance)


def _by_name(runs: Sequence[Measurement]) -> Verdict:
    """Runs of a file, each predicted from the workload, cluster and plan that it names."""
    return Verdict(tuple(_row(run) for run in runs), "nothing: workload, cluster and plan as named in the file")


def _row(run: Measurement) -> Row:
    try:
        workload, cluster = profiles.load_workload(run.workload), profiles.load_cluster(run.cluster)
        cost = price(cluster, run.workers, cluster.effects)
        given = run.plan.endswith(".json")
        plan = profiles.load_plan(run.plan) if given else named_plan(run.plan).rule(workload, cost)
        return row_of(run, workload, cost, plan, cluster.effects.apart_from_cost)
    except OsfError as error:
        return not_predicted(run, str(error))
