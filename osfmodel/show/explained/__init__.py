"""An explained trace in every format: the verdict, a bar per part of the step, the buckets, the remedies."""

from __future__ import annotations

from typing import Any

from osfmodel.diagnosis.explanation import Explanation
from osfmodel.show.document import Result
from osfmodel.show.explained.table import (
    COSTS,
    GROUP_PARTS,
    MESSAGES,
    PARTS,
    RANKS,
    REMEDIES,
    SECONDS,
    causes,
    costs,
    group_columns,
    helping,
    messages,
    most_exposed,
    others,
    parts,
    rank_rows,
    title,
    whose_messages,
)
from osfmodel.show.table import TERMINAL, Sheet, csv_row, json_row, listed_rows, texts
from osfmodel.show.terminal import ENDS, Console, empty_table, print_fitting, show_notes, show_title, table_of


class Explained(Result):
    """The result of ``osf explain``: verdict, parts of a step, causes, buckets and remedies."""

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    def content(self) -> dict[str, Any]:
        one = self.explanation
        return {
            "trace": one.name,
            "workers": one.workers,
            "cluster": one.cluster,
            "verdict": one.verdict,
            "cause": one.cause,
            "network_cause": one.network,
            "straggler_rank": one.straggler,
            "step_time_s": one.step_time,
            "replayed_step_time_s": one.replayed,
            "parts": json_row(SECONDS, one.parts),
            "causes": [json_row(COSTS, cost) for cost in causes(one)],
            "ranks": [json_row(RANKS, row) for row in rank_rows(one)],
            "steps": [
                {"step": step.number, "time_s": step.time, **json_row(SECONDS, step.parts)} for step in one.steps
            ],
            "collectives": [json_row(GROUP_PARTS, row) for row in one.collectives],
            "buckets_of_rank": one.sender,
            "buckets": [json_row(MESSAGES, row) for row in one.buckets],
            "remedies": [json_row(REMEDIES, remedy) for remedy in one.remedies],
            "notes": list(one.remarks),
        }

    def rows(self) -> list[dict[str, Any]]:
        return [{"trace": self.explanation.name, **csv_row(MESSAGES, row)} for row in self.explanation.buckets]

    def sheet(self) -> Sheet:
        """Every table that has rows, with the verdict."""
        one = self.explanation
        tables = [
            listed_rows("", PARTS, parts(one)),
            listed_rows("", COSTS, costs(one)),
            listed_rows("Ranks", RANKS, rank_rows(one) if len(one.ranks) > 1 else []),
            listed_rows("Collectives", group_columns(one), one.collectives),
            listed_rows("Messages", messages(one), one.buckets),
            listed_rows("Remedies", REMEDIES, helping(one.remedies)),
        ]
        notes = [*(words.removesuffix(".") for words in others(one.remedies)), *one.remarks]
        return Sheet(f"{one.name}: {title(one)}", tables, one.verdict, notes)

    def show(self, console: Console) -> None:
        one = self.explanation
        show_title(console, one.verdict)
        console.print()
        show_title(console, f"{one.name}: {title(one)}")
        _show_parts(console, one)
        console.print()
        console.print(table_of(COSTS, costs(one), ENDS))
        _show_ranks(console, one)
        _show_collectives(console, one)
        _show_messages(console, one)
        _show_remedies(console, one)
        show_notes(console, one.remarks)


WIDTH = 40
"""Characters of the bar of a whole step."""
LEFT_OUT = ("hidden", "start", "ready", "end", "size")
"""Columns to leave out on a narrow terminal, the first one first."""
SPARED = (
    "by", "size", "hidden", "waiting", "of best", "bandwidth", "skew", "transfer", "count", "of possible", "late rank",
)  # fmt: skip
"""Likewise, of the table of collectives."""
LISTED = 24
"""Maximum number of buckets that are listed; other formats list all."""


def bar(part: float, whole: float) -> str:
    """``part`` as a bar, eighths of a character included; ``whole`` is WIDTH characters."""
    eighths = round(8 * WIDTH * min(1.0, max(0.0, part / whole))) if whole else 0
    last: str = " ▏▎▍▌▋▊▉"[eighths % 8]
    return ("█" * (eighths // 8) + last).rstrip()


def _show_parts(console: Console, one: Explanation) -> None:
    table = empty_table([*(column.heading(TERMINAL) for column in PARTS), ""], ENDS)
    for part in parts(one):
        table.add_row(*texts(PARTS, part), "" if part.seconds is None else bar(part.seconds, one.step_time))
    console.print(table)


def _show_ranks(console: Console, one: Explanation) -> None:
    if len(one.ranks) > 1:
        console.print()
        console.print(table_of(RANKS, rank_rows(one)))


def _show_collectives(console: Console, one: Explanation) -> None:
    """Print a line for each kind of collective in each process group, with as many columns as fit."""
    if one.collectives:
        console.print()
        print_fitting(console, group_columns(one), one.collectives, leave_out=SPARED)


def _show_messages(console: Console, one: Explanation) -> None:
    """Print a line for each message, with as many columns as fit."""
    if not one.buckets:
        return
    console.print()
    shown = most_exposed(one.buckets, LISTED)
    print_fitting(console, messages(one), shown, leave_out=LEFT_OUT)
    if whose_messages(one):
        console.print(whose_messages(one), markup=False)
    if len(one.buckets) > len(shown):
        words = f"The {len(shown)} of {len(one.buckets)} messages with the most exposed time; for all: --format csv."
        console.print(words, markup=False)


def _show_remedies(console: Console, one: Explanation) -> None:
    """Print a table of the remedies that help, and a line each for those that do not and those without a price."""
    useful = helping(one.remedies)
    if useful:
        console.print()
        console.print(table_of(REMEDIES, useful, ENDS))
    for number, words in enumerate(others(one.remedies)):
        if number == 0 and words.startswith("Would not help"):
            console.print()
        console.print(words, markup=False)
