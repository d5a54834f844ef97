"""The results of ``osf tune``: settings of a framework, and for ``--for any`` the choice between strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from osfmodel.entities.display import how_many, show_bytes, show_predicted_time, show_share
from osfmodel.entities.files.documents import document_of
from osfmodel.entities.units import show_sizes
from osfmodel.planning.results import Outcome, Tuning
from osfmodel.show.document import Result
from osfmodel.show.plans import (
    LEFT_OUT,
    band_column,
    describe,
    gap_text,
    show_bands,
    varied,
    what_if_part,
)
from osfmodel.show.table import Column, Sheet, column, csv_row, json_row, listed_rows
from osfmodel.show.terminal import Console, empty_table, print_fitting, show_notes, show_title
from osfmodel.solve.verdicts import NO

if TYPE_CHECKING:
    from osfmodel.planning.scaling.strategies import StrategyChoice, StrategyRow, StrategyTuning


def tuning_title(one: Tuning) -> str:
    """The workload, the cluster and the framework."""
    return f"{one.workload.name} on {one.cluster.name}{varied(one.what_if)} for {one.target}"


OUTCOMES: tuple[Column[Outcome], ...] = (
    column("workers", "workers", lambda one: one.workers),
    column("default_iteration_time_s", "default", lambda one: one.default_time, show_predicted_time),
    column("tuned_iteration_time_s", "tuned", lambda one: one.tuned_time, show_predicted_time),
    column("optimal_iteration_time_s", "ideal plan", lambda one: one.optimal_time, show_predicted_time),
    column("exposed_communication_s", None, lambda one: one.exposed_time),
    column("lower_bound_s", "bound", lambda one: one.lower_bound, show_predicted_time),
    column("gap", "vs bound", lambda one: one.gap, gap_text),
    column(None, "saved", lambda one: one.gain, lambda gain: show_share(gain if abs(gain) >= 5e-4 else 0.0)),
    band_column(lambda one: one.band),
)
"""Columns of tuned settings at one worker count."""


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


class Tuned(Result):
    """The result of ``osf tune``, the ``lines`` that run it, and the ``options`` that a prediction takes over."""

    def __init__(self, tuning: Tuning, lines: Lines, options: Mapping[str, Any] | None = None) -> None:
        self.tuning, self.lines, self.options = tuning, lines, options
        self.endings, self.verdict = lines.endings, tuning.verdict

    def content(self) -> dict[str, Any]:
        tuning = self.tuning
        first, *others = (document_of(outcome.plan or tuning.plan) for outcome in tuning.outcomes)
        rows = [json_row(OUTCOMES, outcome) for outcome in tuning.outcomes]
        rows[1:] = [row | ({} if plan == first else {"plan": plan}) for row, plan in zip(rows[1:], others, strict=True)]
        workers = [row["workers"] for row in rows]
        return {
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
            **what_if_part(tuning.what_if),
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

    def show(self, console: Console) -> None:
        tuning = self.tuning
        show_title(console, tuning_title(tuning))
        print_fitting(console, OUTCOMES, tuning.outcomes, leave_out=LEFT_OUT)
        show_title(console, tuning.verdict)
        sizes = [bucket.size for bucket in tuning.plan.buckets]
        if sizes:
            console.print(f"{how_many(len(sizes), 'bucket')}{show_sizes(sizes)}.")
        show_notes(console, tuning.remarks)
        show_bands(console, [outcome.band for outcome in tuning.outcomes])
        console.print()
        if not tuning.improvement:
            console.print("To print the settings anyway: --format code")
        elif self.lines.executes:
            console.print(f"For osf.execute ({describe(tuning.plan)}): -o plan.json writes the plan.", markup=False)
        else:
            console.print(tuning.rendered, markup=False, soft_wrap=True)

    def warnings(self) -> list[str]:
        return list(self.tuning.warnings)

    def sheet(self) -> Sheet:
        """The times, with the verdict, and the lines to paste if they are worth it."""
        one = self.tuning
        code = one.rendered if one.improvement else ""
        return Sheet(tuning_title(one), [listed_rows("", OUTCOMES, one.outcomes)], self.verdict, one.notes, code)

    def code(self, ending: str) -> str:
        """The lines to paste, as a file with this ending has them, and nothing else."""
        return self.lines.written(ending)

    def other(self, style: str) -> str:
        """The content of a file in this format, and how to get the part that it leaves out; shown after writing it."""
        if style == "code":
            return f"settings for {self.tuning.target}; the plan and its times: --format json"
        settings = "" if self.lines.executes else "; settings alone: --format code"
        return f"{style}: the plan and its times{settings}" if style in ("json", "yaml") else style


class ChoiceRow(NamedTuple):
    """A strategy, and the choice that it is part of."""

    choice: StrategyChoice
    row: StrategyRow


def choice_rows(choice: StrategyChoice) -> list[ChoiceRow]:
    """A row for each strategy."""
    return [ChoiceRow(choice, row) for row in choice.rows]


STRATEGY: tuple[Column[ChoiceRow], ...] = (
    column("plan", "strategy", lambda one: one.row.name),
    column("iteration_time_s", "iteration", lambda one: one.row.time, show_predicted_time),
    column(
        "against_base",
        "against",
        lambda one: one.choice.against(one.row),
        lambda part: show_share(round(part, 4) + 0.0, "+"),
    ),
    band_column(lambda one: one.row.prediction.band, "none"),
    column("peak_memory_bytes", "memory", lambda one: None if one.row.peak is None else one.row.peak.bytes, show_bytes),
    column("reserved_memory_bytes", None, lambda one: one.row.reserved),
    column("fits", "fits", lambda one: one.row.fits),
    column("fits_chance", None, lambda one: one.row.chance),
)
"""Columns of a strategy at one worker count."""


class StrategiesTuned(Result):
    """The strategies at each worker count, and the settings of the one to take at the last."""

    def __init__(self, made: StrategyTuning, options: Mapping[str, Any] | None = None) -> None:
        self.made, self.endings, self.verdict, self.options = made, made.endings, made.verdict, options

    def content(self) -> dict[str, Any]:
        made = self.made
        return {
            "workload": made.workload.name,
            "cluster": made.cluster.name,
            "target": "any",
            "limit_bytes": made.limit,
            **what_if_part(made.what_if),
            **self._choice(made.last),
            "verdict": made.verdict,
            "notes": [*made.warnings, *made.notes],
            "tuned": None if made.tuned is None else json_row(STRATEGY, ChoiceRow(made.last, made.tuned)),
            "options": self.options,
            "plan": None if made.plan is None else document_of(made.plan),
            "rendered": made.written(""),
            "sweep": [self._choice(choice) for choice in made.choices],
        }

    def _choice(self, choice: StrategyChoice) -> dict[str, Any]:
        return {
            "workers": choice.workers,
            "base": None if choice.base is None else choice.base.name,
            "recommended": None if choice.chosen is None else choice.chosen.name,
            "strategies": [json_row(STRATEGY, row) for row in choice_rows(choice)],
        }

    def rows(self) -> list[dict[str, Any]]:
        common = {"workload": self.made.workload.name, "cluster": self.made.cluster.name}
        return [
            {**common, "workers": choice.workers, **csv_row(STRATEGY, row)}
            for choice in self.made.choices
            for row in choice_rows(choice)
        ]

    def show(self, console: Console) -> None:
        made, lines = self.made, self.made.written("")
        last = made.last
        room = "" if made.limit is None else f", {show_bytes(made.limit)} each"
        where = f"{made.cluster.name}{varied(made.what_if)}"
        show_title(console, f"{made.workload.name} on {where}, {how_many(last.workers, 'worker')}{room}")
        left_out = {"peak_memory_bytes"} if last.rows[0].peak is None else set()
        left_out |= {"fits"} if made.limit is None else set()
        left_out |= {"against_base"} if last.base is None else set()
        columns = [one for one in STRATEGY if one.key not in left_out]
        if last.base is not None:
            head = f"against {last.base.name}"
            columns = [replace(one, head=head) if one.key == "against_base" else one for one in columns]
        print_fitting(console, columns, choice_rows(last))
        show_title(console, made.verdict)
        if len(made.choices) > 1:
            _show_turns(console, made)
        show_notes(console, made.notes)
        console.print()
        if made.unchanged:
            console.print("To print DDP's settings anyway: --format code")
        elif lines:
            console.print(lines, markup=False, soft_wrap=True)

    def warnings(self) -> list[str]:
        return list(self.made.warnings)

    def code(self, ending: str) -> str:
        """The lines to paste, as a file with this ending has them."""
        return self.made.written(ending)


def _show_turns(console: Console, made: StrategyTuning) -> None:
    """Print the step time of each strategy at each worker count, and the strategy to take there."""
    from rich.markup import escape

    names = list(dict.fromkeys(row.name for choice in made.choices for row in choice.rows))
    console.print()
    table = empty_table(["workers", *map(escape, names), "take"], words=(-1,))
    for choice in made.choices:
        taken = "nothing fits" if choice.chosen is None else choice.chosen.name
        table.add_row(str(choice.workers), *_cells(choice, names), escape(taken))
    console.print(table)
    misfits = any(row.fits == NO for choice in made.choices for row in choice.rows)
    console.print(f"Take {made.turns}.{' In brackets: does not fit.' if misfits else ''}", markup=False)


def _cells(choice: StrategyChoice, names: list[str]) -> Iterator[str]:
    """The step time under each strategy; in brackets where it does not fit, empty where there is none."""
    rows = {row.name: row for row in choice.rows}
    for name in names:
        row = rows.get(name)
        time = "" if row is None else show_predicted_time(row.time)
        yield f"({time})" if row is not None and row.fits == NO else time
