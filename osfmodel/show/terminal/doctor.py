"""A check-up on a terminal: the verdict, the parts of the curve, its sizes, the faults, and experiments."""

from __future__ import annotations

from rich.console import Console

from osfmodel.diagnosis.doctor.checkup import Checkup
from osfmodel.entities.display import listed
from osfmodel.show.tables.doctor import HYPOTHESES, PARTS, SIZES, SLOWEST, shown_sizes
from osfmodel.show.terminal.tables import ENDS, print_fitting, show_title, table_of

LISTED = 0.01
"""Minimum probability of a fault that is shown."""


def show_checkup(console: Console, one: Checkup) -> None:
    """Print the verdict, the place among other machines, the sizes, and the experiments."""
    console.print(one.verdict, style="bold", markup=False)
    console.print()
    show_title(console, f"{one.name}, against {one.against}")
    console.print(table_of(PARTS, one.classes, (0, 1)))
    title, sizes = shown_sizes(one)
    console.print()
    show_title(console, title)
    columns = [one for one in SIZES if one.head != SLOWEST or any(row.slowest is not None for row in sizes)]
    print_fitting(console, columns, sizes, leave_out=("bus bandwidth", "expected"))
    if len(sizes) < len(one.sizes):
        console.print("Other tables: --format csv.", markup=False)
    console.print()
    console.print(table_of(HYPOTHESES, [s for s in one.hypotheses if s.probability >= LISTED], ENDS))
    if one.ruled_out:
        console.print(f"Ruled out: {listed(one.ruled_out)}.", markup=False)
    for name, words in one.experiments:
        console.print(f"To prove {name}: {words}.", markup=False)
    for remark in one.remarks:
        console.print(f"Note: {remark}.", markup=False)
