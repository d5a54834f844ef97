"""A result in the format that was asked for: a table for a person, or JSON, YAML and CSV for a program."""

from __future__ import annotations

import csv
import io
from typing import Any, Protocol

from osfmodel import documents
from osfmodel.economics import Economics, knee
from osfmodel.predict import Comparison
from osfmodel.tune import Tuning

FORMATS = ("table", "json", "yaml", "csv")


class Result(Protocol):
    """What a command hands over to be shown."""

    def document(self) -> dict[str, Any]:
        """For JSON and YAML: the contract."""

    def rows(self) -> list[dict[str, Any]]:
        """For CSV: flat, all rows with the same columns."""

    def show(self, console: Any) -> None:
        """For a person, on a rich console."""

    def warnings(self) -> list[str]:
        """What to be careful about, for stderr."""


class Predicted:
    """The result of ``osf predict`` in every format."""

    def __init__(self, comparisons: list[Comparison], money: dict[str, list[Economics]]) -> None:
        self.comparisons, self.money = comparisons, money

    def document(self) -> dict[str, Any]:
        entries = [documents.comparison_document(comparison) for comparison in self.comparisons]
        for index, entry in enumerate(entries):
            for row in entry["predictions"]:
                if self.money:
                    paid = self.money[row["plan"]][index]
                    row.update(hours=paid.hours, gpu_hours=paid.gpu_hours, cost=paid.cost)
        knees = {"knee_workers": {plan: knee(rows) for plan, rows in self.money.items()}} if self.money else {}
        if len(entries) == 1:
            return {**entries[0], **knees}
        return {"schema_version": documents.SCHEMA_VERSION, "sweep": entries, **knees}

    def rows(self) -> list[dict[str, Any]]:
        document = self.document()
        shared = ("workload", "cluster", "workers", "compute_time_s", "lower_bound_s")
        return [
            {**{key: entry[key] for key in shared}, **row, "notes": "; ".join(row["notes"])}
            for entry in document.get("sweep", [document])
            for row in entry["predictions"]
        ]

    def show(self, console: Any) -> None:
        from osfmodel import screen

        if len(self.comparisons) == 1:
            screen.show_comparison(console, self.comparisons[0])
        else:
            screen.show_sweep(console, self.comparisons)
        for plan, rows in self.money.items():
            console.print()
            screen.show_economics(console, plan, rows)

    def warnings(self) -> list[str]:
        plans: dict[tuple[int, str], list[str]] = {}
        for comparison in self.comparisons:
            for prediction in comparison.predictions:
                for note in prediction.notes:
                    plans.setdefault((comparison.workers, note), []).append(prediction.name)
        return [f"{workers} workers ({', '.join(names)}): {note}" for (workers, note), names in plans.items()]


class Tuned:
    """The result of ``osf tune`` in every format."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning

    def document(self) -> dict[str, Any]:
        return documents.tuning_document(self.tuning)

    def rows(self) -> list[dict[str, Any]]:
        document = self.document()
        common = {key: document[key] for key in ("workload", "cluster", "target", "improvement")}
        times = ("workers", "default_iteration_time_s", "tuned_iteration_time_s", "optimal_iteration_time_s",
                 "lower_bound_s", "gap")  # fmt: skip
        return [{**common, **{key: row[key] for key in times}} for row in document.get("sweep", [document])]

    def show(self, console: Any) -> None:
        from osfmodel import screen

        screen.show_tuning(console, self.tuning)

    def warnings(self) -> list[str]:
        return []


DETAILS = ("conditions", "licence")
"""Columns too long for a table; the other formats have them."""


class Listed:
    """The result of ``osf list`` in every format."""

    def __init__(self, listings: dict[str, list[dict[str, Any]]]) -> None:
        self.listings = listings

    def document(self) -> dict[str, Any]:
        return {"schema_version": documents.SCHEMA_VERSION, **self.listings}

    def rows(self) -> list[dict[str, Any]]:
        rows = [{"kind": kind, **row} for kind, entries in self.listings.items() for row in entries]
        columns = dict.fromkeys(key for row in rows for key in row)
        return [{column: row.get(column) for column in columns} for row in rows]

    def show(self, console: Any) -> None:
        from osfmodel import screen

        for number, (kind, rows) in enumerate(self.listings.items()):
            if number:
                console.print()
            short = [{key: value for key, value in row.items() if key not in DETAILS} for row in rows]
            screen.show_list(console, kind, short)

    def warnings(self) -> list[str]:
        return []


def render(style: str, result: Result, for_terminal: bool) -> str:
    """``result`` in one of FORMATS; ``for_terminal`` allows colour and the terminal's own width in tables."""
    if style == "json":
        return documents.encode(result.document())
    if style == "yaml":
        import yaml

        return str(yaml.safe_dump(result.document(), sort_keys=False, allow_unicode=True))
    if style == "csv":
        rows = result.rows()
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return buffer.getvalue()
    return _table(result, for_terminal)


def _table(result: Result, for_terminal: bool) -> str:
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=for_terminal, width=None if for_terminal else 120)
    result.show(console)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
