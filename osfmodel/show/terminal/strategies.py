"""The choice between strategies on a terminal. Data in, text out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.markup import escape

from osfmodel.entities.display import how_many, show_bytes, show_predicted_time
from osfmodel.planning.scaling.strategies import StrategyChoice, StrategyTuning
from osfmodel.show.tables.strategies import STRATEGY, choice_rows
from osfmodel.show.terminal.tables import empty_table, print_fitting, show_title


def show_strategies(console: Console, made: StrategyTuning, lines: str) -> None:
    """Print the strategies at the last worker count, the one to take, the choice at each count, and its lines."""
    last, varied = made.last, f" with {made.what_if.words}" if made.what_if.words else ""
    room = "" if made.limit is None else f", {show_bytes(made.limit)} each"
    show_title(
        console, f"{made.workload.name} on {made.cluster.name}{varied}, {how_many(last.workers, 'worker')}{room}"
    )
    left_out = {"peak_memory_bytes"} if last.rows[0].peak is None else set()
    left_out |= {"fits"} if made.limit is None else set()
    left_out |= {"against_base"} if last.base is None else set()
    columns = [one for one in STRATEGY if one.key not in left_out]
    if last.base is not None:
        head = f"against {last.base.name}"
        columns = [replace(one, head=head) if one.key == "against_base" else one for one in columns]
    print_fitting(console, columns, choice_rows(last))
    console.print(made.verdict, style="bold", markup=False)
    if len(made.choices) > 1:
        _show_turns(console, made)
    for note in made.notes:
        console.print(f"Note: {note}.", markup=False)
    console.print()
    if made.unchanged:
        console.print("To print DDP's settings anyway: --format code")
    elif lines:
        console.print(lines, markup=False, soft_wrap=True)


def _show_turns(console: Console, made: StrategyTuning) -> None:
    """Print the step time of each strategy at each worker count, and the strategy to take there."""
    names = list(dict.fromkeys(row.name for choice in made.choices for row in choice.rows))
    console.print()
    table = empty_table(["workers", *map(escape, names), "take"], words=(-1,))
    for choice in made.choices:
        taken = "nothing fits" if choice.chosen is None else choice.chosen.name
        table.add_row(str(choice.workers), *_cells(choice, names), escape(taken))
    console.print(table)
    misfits = any(row.fits is False for choice in made.choices for row in choice.rows)
    console.print(f"Take {made.turns}.{' In brackets: does not fit.' if misfits else ''}", markup=False)


def _cells(choice: StrategyChoice, names: list[str]) -> Iterator[str]:
    """The step time under each strategy; in brackets where it does not fit, empty where there is none."""
    rows = {row.name: row for row in choice.rows}
    for name in names:
        row = rows.get(name)
        time = "" if row is None else show_predicted_time(row.time)
        yield f"({time})" if row is not None and row.fits is False else time
