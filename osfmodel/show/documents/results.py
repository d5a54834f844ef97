"""The results of the commands, each in every format: a table for a person, or JSON, YAML and CSV for a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_bytes, show_time
from osfmodel.entities.files.documents import SCHEMA_VERSION, document_of
from osfmodel.entities.measurement import UNKNOWN, Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import Comparison, Tuning
from osfmodel.planning.what_if import WhatIf
from osfmodel.show.tables import Column, csv_row, json_row
from osfmodel.show.tables.plans import COMPARISONS, OUTCOMES, PAID, PLANS, RATE, PlanRow, plan_rows

if TYPE_CHECKING:
    from osfmodel.planning.scaling.economics import TrainingCosts


class Predicted:
    """The result of ``osf predict``; ``costs``: of the whole training, if asked for.

    ``scaling``: whether to show the gain from more workers; ``buckets``: whether to show bucket sizes to a person.
    """

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        costs: TrainingCosts | None = None,
        scaling: bool = False,
        buckets: bool = False,
    ) -> None:
        self.comparisons, self.costs, self.scaling, self.buckets = comparisons, costs, scaling, buckets
        paid = [()] * len(comparisons) if costs is None else costs.rows
        self.plans = [list(plan_rows(*pair)) for pair in zip(comparisons, paid, strict=True)]

    def document(self) -> dict[str, Any]:
        entries = [self._entry(*pair) for pair in zip(self.comparisons, self.plans, strict=True)]
        knees = {} if self.costs is None else {"knee_workers": dict(self.costs.knees)}
        if len(entries) == 1:
            return {**entries[0], **knees}
        return {"schema_version": SCHEMA_VERSION, "sweep": entries, **knees}

    def _entry(self, comparison: Comparison, rows: Sequence[PlanRow]) -> dict[str, Any]:
        what_if = comparison.what_if
        return {
            "schema_version": SCHEMA_VERSION,
            **json_row(COMPARISONS, comparison),
            "lower_bound_s": comparison.lower_bound,
            **_what_if(what_if),
            **({"scaling": "weak" if what_if.global_batch is None else "strong"} if self.scaling else {}),
            "predictions": [json_row(self._columns(), row) for row in rows],
        }

    def _columns(self) -> tuple[Column[PlanRow], ...]:
        """The columns of a prediction, without unknown ones and those not asked for; the same for all comparisons."""
        first = self.comparisons[0]
        rated = first.workload.batch_size is not None or first.what_if.words or self.scaling
        return (*PLANS, *([RATE] if rated else []), *(PAID if self.costs else ()))

    def rows(self) -> list[dict[str, Any]]:
        columns = self._columns()
        return [
            {**csv_row(COMPARISONS, row.comparison), **csv_row(columns, row)} for rows in self.plans for row in rows
        ]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import results as screen

        if self.scaling:
            screen.show_scaling(console, self.plans)
        elif len(self.comparisons) == 1:
            screen.show_comparison(console, self.comparisons[0])
        else:
            screen.show_sweep(console, self.plans)
        if self.buckets:
            screen.show_buckets(console, self.comparisons)
        if self.costs is not None:
            screen.show_economics(console, self.plans, self.costs.knees)

    def warnings(self) -> list[str]:
        plans: dict[tuple[int, str], list[str]] = {}
        for comparison in self.comparisons:
            for prediction in comparison.predictions:
                for note in prediction.warnings:
                    plans.setdefault((comparison.workers, note), []).append(prediction.name)
        counts: dict[tuple[str, str], list[str]] = {}
        for (workers, note), names in plans.items():
            counts.setdefault((", ".join(names), note), []).append(str(workers))
        return [f"{', '.join(workers)} workers ({names}): {note}" for (names, note), workers in counts.items()]


def _what_if(what_if: WhatIf) -> dict[str, Any]:
    return {"what_if": what_if.document} if what_if.document else {}


class Lines(NamedTuple):
    """Lines to paste, or to write to a file of the framework.

    endings:  endings of such files
    written:  (ending) -> the content of a file with this ending
    executes: whether the plan is for our executor, which reads the plan itself
    other:    whether the lines are other than the framework's settings
    """

    endings: tuple[str, ...]
    written: Callable[[str], str]
    executes: bool = False
    other: bool = False


class Tuned:
    """The result of ``osf tune``, the ``lines`` that run it, and the ``options`` that a prediction takes over."""

    def __init__(self, tuning: Tuning, lines: Lines, options: Mapping[str, Any] | None = None) -> None:
        self.tuning, self.lines, self.options = tuning, lines, options
        self.endings, self.verdict = lines.endings, tuning.verdict

    def document(self) -> dict[str, Any]:
        tuning = self.tuning
        first, *others = (document_of(outcome.plan or tuning.plan) for outcome in tuning.outcomes)
        rows = [json_row(OUTCOMES, outcome) for outcome in tuning.outcomes]
        rows[1:] = [row | ({} if plan == first else {"plan": plan}) for row, plan in zip(rows[1:], others, strict=True)]
        workers = [row["workers"] for row in rows]
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": tuning.workload.name,
            "cluster": tuning.cluster.name,
            "workers": workers[0] if len(rows) == 1 else workers,
            "target": tuning.target,
            "improvement": tuning.improvement,
            "recommended": tuning.recommended,
            "verdict": tuning.verdict,
            "notes": list(tuning.notes),
            "options": self.options,
            "plan": first,
            "config": tuning.config,
            "rendered": self.lines.written("") if self.lines.other else tuning.rendered,
            **_what_if(tuning.what_if),
            **(rows[0] if len(rows) == 1 else {"sweep": rows}),
        }

    def rows(self) -> list[dict[str, Any]]:
        tuning = self.tuning
        common = {
            "workload": tuning.workload.name,
            "cluster": tuning.cluster.name,
            "target": tuning.target,
            "improvement": tuning.improvement,
        }
        return [{**common, **csv_row(OUTCOMES, outcome)} for outcome in tuning.outcomes]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import results as screen

        screen.show_tuning(console, self.tuning, self.lines.executes)

    def warnings(self) -> list[str]:
        return list(self.tuning.warnings)

    def code(self, ending: str) -> str:
        """The lines to paste, as a file with this ending has them, and nothing else."""
        return self.lines.written(ending)

    def other(self, style: str) -> str:
        """The content of a file in this format, and how to get the part that it leaves out; shown after writing it."""
        if style == "code":
            return f"settings for {self.tuning.target}; the plan and its times: --format json"
        settings = "" if self.lines.executes else "; settings alone: --format code"
        return f"{style}: the plan and its times{settings}" if style in ("json", "yaml") else style


def summary(noun: Workload | Cluster | Measurement | Plan) -> str:
    """One line about the content of a profile."""
    if isinstance(noun, Measurement):
        plan = "" if noun.plan == UNKNOWN else f" of {noun.plan}"
        what = f"{how_many(len(noun.samples), 'iteration')}{plan} with {how_many(noun.workers, 'worker')}"
        buckets = [len(value.split()) for key, value in noun.conditions if key == "buckets"]
        formed = "".join(f" in {how_many(count, 'message')}" for count in buckets)
        return f"measurement: {what}, {show_time(noun.iteration_time)}{' each' * (len(noun.samples) > 1)}{formed}"
    if isinstance(noun, Workload):
        size, tensors = show_bytes(noun.gradient_bytes), how_many(len(noun.gradients), "tensor")
        return f"workload {noun.name}: {tensors}, {size}, {show_time(noun.compute_time)} per iteration"
    if isinstance(noun, Plan):
        groups = noun.sharding.groups if noun.sharding else ()
        again = sum(group.reshard is not False for group in groups)
        return (
            f"plan {noun.workload}: {noun.strategy}, {how_many(len(noun.buckets), 'group')}, of which backward gathers "
            f"{again} again"
        )
    for kind, rows in (("fits", noun.fits), ("pieces", noun.pieces)):
        if rows:
            return f"cluster {noun.name}: {kind} for {', '.join(str(row.workers) for row in rows)} workers"
    if not noun.tables:
        return f"cluster {noun.name}: {noun.cost_model}, for any worker count"
    parts = []
    for table in noun.tables:
        span = f"{show_bytes(table.sizes[0])} to {show_bytes(table.sizes[-1])}"
        parts.append(f"{table.collective} with {table.workers} workers, {span}")
    return f"cluster {noun.name}: {'; '.join(parts)}"
