"""The results of the commands, each in every format: a table for a person, or JSON, YAML and CSV for a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from osfmodel.engine.bands import Band
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.files.documents import SCHEMA_VERSION, document_of
from osfmodel.entities.measurement import UNKNOWN, Measurement
from osfmodel.entities.units import how_many, show_bytes, show_time
from osfmodel.entities.workload import Workload
from osfmodel.planning.economics import Economics, knee
from osfmodel.planning.predictions import Comparison, Prediction
from osfmodel.planning.tuning import Outcome, Tuning
from osfmodel.planning.what_if import WhatIf
from osfmodel.targets import CONFIG_TARGETS


class Predicted:
    """The result of ``osf predict``; ``money`` has a row for every prediction, or is empty.

    ``scaling``: whether what more workers bring is asked for; ``buckets``: whether their sizes are shown to a person.
    """

    def __init__(
        self,
        comparisons: Sequence[Comparison],
        money: Sequence[Sequence[Economics]],
        scaling: bool = False,
        buckets: bool = False,
    ) -> None:
        self.comparisons, self.money, self.scaling, self.buckets = comparisons, money, scaling, buckets

    def document(self) -> dict[str, Any]:
        entries = [self._entry(number) for number in range(len(self.comparisons))]
        knees = {"knee_workers": self.knees()} if self.money else {}
        if len(entries) == 1:
            return {**entries[0], **knees}
        return {"schema_version": SCHEMA_VERSION, "sweep": entries, **knees}

    def _entry(self, number: int) -> dict[str, Any]:
        comparison = self.comparisons[number]
        rows = [_prediction(prediction, comparison.workers) for prediction in comparison.predictions]
        if comparison.workload.batch_size is not None or comparison.what_if.words or self.scaling:
            for row, prediction in zip(rows, comparison.predictions, strict=True):
                row.update(samples_per_s=comparison.throughput(prediction))
        if self.money:
            for row, paid in zip(rows, self.money[number], strict=True):
                row.update(hours=paid.hours, gpu_hours=paid.gpu_hours, cost=paid.cost)
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": comparison.workload.name,
            "cluster": comparison.cluster.name,
            "workers": comparison.workers,
            "compute_time_s": comparison.workload.compute_time,
            "lower_bound_s": comparison.lower_bound,
            **_what_if(comparison.what_if),
            **({"scaling": "weak" if comparison.what_if.global_batch is None else "strong"} if self.scaling else {}),
            "predictions": rows,
        }

    def knees(self) -> dict[str, int | None]:
        """The knee of each plan."""
        labels = [prediction.name for prediction in self.comparisons[0].predictions]
        return {label: knee(rows) for label, rows in zip(labels, zip(*self.money, strict=True), strict=True)}

    def rows(self) -> list[dict[str, Any]]:
        document = self.document()
        shared = ("workload", "cluster", "workers", "compute_time_s")
        return [
            {
                **{key: entry[key] for key in shared},
                **row,
                "bucket_sizes_bytes": " ".join(map(str, row["bucket_sizes_bytes"])),
                "error_band": (row["error_band"] or {}).get("half_width"),
                "runs_on": " ".join(row["runs_on"]),
                "notes": "; ".join(row["notes"]),
            }
            for entry in document.get("sweep", [document])
            for row in entry["predictions"]
        ]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import results as screen

        if self.scaling:
            screen.show_scaling(console, self.comparisons)
        elif len(self.comparisons) == 1:
            screen.show_comparison(console, self.comparisons[0])
        else:
            screen.show_sweep(console, self.comparisons)
        if self.buckets:
            screen.show_buckets(console, self.comparisons)
        if self.money:
            screen.show_economics(console, self.comparisons, self.money, self.knees())

    def warnings(self) -> list[str]:
        plans: dict[tuple[int, str], list[str]] = {}
        for comparison in self.comparisons:
            for prediction in comparison.predictions:
                for note in prediction.warnings:
                    plans.setdefault((comparison.workers, note), []).append(prediction.name)
        return [f"{workers} workers ({', '.join(names)}): {note}" for (workers, note), names in plans.items()]


def _what_if(what_if: WhatIf) -> dict[str, Any]:
    return {"what_if": what_if.document} if what_if.document else {}


def _prediction(prediction: Prediction, workers: int) -> dict[str, Any]:
    return {
        "plan": prediction.name,
        "buckets": len(prediction.plan.buckets),
        "bucket_sizes_bytes": [bucket.size for bucket in prediction.plan.buckets],
        "iteration_time_s": prediction.iteration_time,
        "exposed_communication_s": prediction.timeline.exposed_communication,
        "scaling_factor": prediction.scaling_factor,
        "speed_up": prediction.scaling_factor * workers,
        "gap": prediction.gap,
        "error_band": _band(prediction.band, prediction.iteration_time),
        "lower_bound_s": prediction.lower_bound,
        "channels": prediction.plan.channels,
        "forward_overlap": prediction.plan.forward_overlap,
        "split": prediction.plan.split,
        "runs_on": list(prediction.runs_on) or ["executor"],
        "engine": prediction.engine,
        "notes": list(prediction.notes),
    }


def _band(band: Band | None, time: float) -> dict[str, Any] | None:
    if band is None:
        return None
    low, high = band.interval(time)
    return {
        "half_width": band.half_width,
        "low_s": low,
        "high_s": None if math.isinf(high) else high,
        "runs": band.runs,
        "sources": list(band.sources),
        "nearest_regime": band.nearest,
    }


class Tuned:
    """The result of ``osf tune``; ``lines``: others than those of its framework, which are asked for."""

    def __init__(self, tuning: Tuning, lines: str | None = None) -> None:
        self.tuning, self.lines = tuning, lines

    def document(self) -> dict[str, Any]:
        tuning = self.tuning
        rows = [_outcome(outcome) for outcome in tuning.outcomes]
        workers = [row["workers"] for row in rows]
        return {
            "schema_version": SCHEMA_VERSION,
            "workload": tuning.workload.name,
            "cluster": tuning.cluster.name,
            "workers": workers[0] if len(rows) == 1 else workers,
            "target": tuning.target,
            "improvement": tuning.improvement,
            "verdict": tuning.verdict,
            "notes": list(tuning.notes),
            "plan": document_of(tuning.plan),
            "config": tuning.config,
            "rendered": tuning.rendered if self.lines is None else self.lines,
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
        return [
            {**common, **_outcome(outcome), "error_band": None if outcome.band is None else outcome.band.half_width}
            for outcome in tuning.outcomes
        ]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import results as screen

        screen.show_tuning(console, self.tuning)

    def warnings(self) -> list[str]:
        return list(self.tuning.warnings)

    @property
    def endings(self) -> tuple[str, ...]:
        """Of files with the framework's settings."""
        return CONFIG_TARGETS[self.tuning.target].text.endings

    def code(self, ending: str) -> str:
        """The lines to paste, alone, as they stand in a file whose name ends so."""
        tuning = self.tuning
        if self.lines is not None:
            return self.lines
        return CONFIG_TARGETS[tuning.target].text.written(tuning.knobs, tuning.workload, ending)

    def other(self, style: str) -> str:
        """What a file in this format holds, and how to have what it leaves out."""
        if style == "code":
            return f"settings for {self.tuning.target}; the plan and its times: --format json"
        settings = "" if CONFIG_TARGETS[self.tuning.target].executes else "; settings alone: --format code"
        return f"{style}: the plan and its times{settings}" if style in ("json", "yaml") else style


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "workers": outcome.workers,
        "default_iteration_time_s": outcome.default_time,
        "tuned_iteration_time_s": outcome.tuned_time,
        "optimal_iteration_time_s": outcome.optimal_time,
        "lower_bound_s": outcome.lower_bound,
        "gap": outcome.gap,
        "error_band": _band(outcome.band, outcome.tuned_time),
    }


class Listed:
    """The result of ``osf list``: rows by kind, or one entry with all that is known of it."""

    def __init__(self, listings: dict[str, list[dict[str, Any]]], problems: Sequence[str], whole: bool) -> None:
        self.listings, self.problems, self.whole = listings, problems, whole

    def document(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **self.listings}

    def rows(self) -> list[dict[str, Any]]:
        rows = [{"kind": kind, **row} for kind, entries in self.listings.items() for row in entries]
        columns = dict.fromkeys(key for row in rows for key in row)
        return [{column: row.get(column) for column in columns} for row in rows]

    def show(self, console: Any) -> None:
        from osfmodel.show.terminal import listing as list_screen

        for number, (kind, rows) in enumerate(self.listings.items()):
            if number:
                console.print()
            if self.whole:
                list_screen.show_entry(console, rows[0])
            else:
                list_screen.show_list(console, kind, rows)

    def warnings(self) -> list[str]:
        return list(self.problems)


def summary(noun: Workload | Cluster | Measurement) -> str:
    """One line on what a file holds."""
    if isinstance(noun, Measurement):
        plan = "" if noun.plan == UNKNOWN else f" of {noun.plan}"
        what = f"{how_many(len(noun.samples), 'iteration')}{plan} with {how_many(noun.workers, 'worker')}"
        buckets = [len(value.split()) for key, value in noun.conditions if key == "buckets"]
        formed = "".join(f" in {how_many(count, 'message')}" for count in buckets)
        return f"measurement: {what}, {show_time(noun.iteration_time)}{' each' * (len(noun.samples) > 1)}{formed}"
    if isinstance(noun, Workload):
        size, tensors = show_bytes(noun.gradient_bytes), how_many(len(noun.gradients), "tensor")
        return f"workload {noun.name}: {tensors}, {size}, {show_time(noun.compute_time)} per iteration"
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
