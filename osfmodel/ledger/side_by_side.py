"""Plans that were measured beside each other, each predicted and measured, with what it gains over the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from osfmodel.entities.measurement import DEFAULTS, Measurement
from osfmodel.ledger.recipe import Row


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


def side_by_side(runs: Sequence[Measurement], rows: Sequence[Row]) -> tuple[Beside, ...]:
    """The groups of ``runs`` that were run alike under several plans, the default among them.

    ``rows`` are the runs held against their predictions, in the same order.
    """
    groups: dict[object, list[tuple[Measurement, Row]]] = {}
    for run, row in zip(runs, rows, strict=True):
        groups.setdefault((run.workload, run.cluster, run.workers, run.shared_conditions), []).append((run, row))
    return tuple(
        _beside(group) for group in groups.values() if set(DEFAULTS) & set(plans := _plans(group)) and len(plans) > 1
    )


def _plans(group: Sequence[tuple[Measurement, Row]]) -> list[str]:
    return list(dict.fromkeys(run.plan for run, _ in group))


def _beside(group: Sequence[tuple[Measurement, Row]]) -> Beside:
    first = group[0][0]
    turns = tuple(_turns(plan, [pair for pair in group if pair[0].plan == plan]) for plan in _plans(group))
    return Beside(first.workload, first.cluster, first.workers, first.shared_conditions, turns)


def _turns(plan: str, pairs: Sequence[tuple[Measurement, Row]]) -> PlanRuns:
    times = [run.iteration_time for run, _ in pairs]
    unknown = next((row for _, row in pairs if row.predicted is None), None)
    row = unknown or pairs[0][1]
    return PlanRuns(plan, len(pairs), median(times), max(times) / min(times) - 1, row.predicted, row.note, row.steady)
