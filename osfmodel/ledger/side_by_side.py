"""Plans that were measured side by side, each with its prediction and its speed-up over the default."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from osfmodel.entities.measurement import DEFAULTS, Measurement
from osfmodel.ledger.results import Beside, PlanRuns, Row


def side_by_side(runs: Sequence[Measurement], rows: Sequence[Row]) -> tuple[Beside, ...]:
    """The groups of ``runs`` under the same conditions but several plans, the default among them.

    ``rows`` are the runs beside their predictions, in the same order.
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
