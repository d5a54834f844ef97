"""Memory on a terminal: the owners of the peak, and a step as a row of bars. Data in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape

from osfmodel.engine.memory import Memory
from osfmodel.engine.strategies.holdings import OWNERS
from osfmodel.entities.display import show_bytes, show_predicted_time, show_share
from osfmodel.planning.memory.budget import Candidate, MemoryTuning
from osfmodel.show.tables import TERMINAL, for_people
from osfmodel.show.tables.memory import FITS, PEAKS, WHICH, compared
from osfmodel.show.terminal.tables import empty_table, table_of

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 64
"""Characters of a row of bars."""
LISTED = 8
"""Maximum number of names that are listed; the plan file lists all."""


def bars(memory: Memory, top: int, until: float, width: int = WIDTH) -> str:
    """The highest level in each of ``width`` parts of the time up to ``until``; a full block is ``top`` bytes."""
    highest = [0] * width
    for level in memory.levels:
        first = min(int(level.start / until * width), width - 1)
        last = min(max(int(level.end / until * width - 1e-9), first), width - 1)
        for place in range(first, last + 1):
            highest[place] = max(highest[place], level.bytes)
    steps = len(BARS) - 1
    return "".join(BARS[min(steps, -(-size * steps // top))] for size in highest)


def show_memory(console: Console, named: Mapping[str, Memory], times: Mapping[str, float], limit: int | None) -> None:
    """Print the owners at the peak, side by side, and the steps on one scale."""
    table = empty_table(["at the peak", *map(escape, named)])
    peaks = [memory.peak for memory in named.values()]
    for owner in dict.fromkeys((*OWNERS, *(owner for peak in peaks for owner in peak.held))):
        if any(peak.held.get(owner) for peak in peaks):
            table.add_row(owner, *(show_bytes(peak.held.get(owner, 0)) for peak in peaks))
    for number, column in enumerate(for_people(PEAKS, TERMINAL)):
        cells = (escape(column.shown(memory)) for memory in named.values())
        table.add_row(column.heading(TERMINAL), *cells, style=None if number else "bold")
    console.print(table)
    top = max([limit or 0, *(peak.bytes for peak in peaks)])
    longest = max(times.values())
    wide = max(map(len, named))
    for name, memory in named.items():
        row = bars(memory, top, longest, width=max(1, min(WIDTH, console.width - wide - 2)))
        console.print(f"{name:<{wide}}  {row}", markup=False, soft_wrap=True)
    console.print(
        f"{'':<{wide}}  0 to {show_predicted_time(longest)}; a full block is {show_bytes(top)}.", markup=False
    )


def show_memory_tuning(console: Console, tuning: MemoryTuning) -> None:
    """Print DDP's defaults and the tuned plan, its choices, and the memory timelines."""
    title = f"{tuning.workload.name} on {tuning.cluster.name}, {tuning.workers} workers, within "
    console.print(f"{title}{show_bytes(tuning.demand.limit)}", style="bold", markup=False)
    fits = compared(tuning)
    console.print(table_of((WHICH, *FITS), fits))
    console.print(_verdict(tuning), style="bold", markup=False)
    for line in chosen(tuning.after):
        console.print(f"{line}.", markup=False)
    for note in tuning.notes:
        console.print(f"Note: {note}.", markup=False)
    console.print()
    memories = {WHICH.shown(fit): fit.candidate.memory for fit in fits}
    times = {WHICH.shown(fit): fit.candidate.iteration_time for fit in fits}
    show_memory(console, memories, times, tuning.demand.limit)
    console.print("For osf.execute: -o plan.json writes the plan.", markup=False)


def _verdict(tuning: MemoryTuning) -> str:
    saved = "recomputed and released" if tuning.demand.release else "recomputed"
    largest = f"the largest batch that fits with everything {saved} is {tuning.largest}"
    if tuning.before is None:
        size = tuning.demand.batch_size
        if size is not None:
            return f"DDP's defaults do not fit with {size} samples."
        return f"DDP's defaults do not fit with a single sample; {largest}."
    largest += f", with DDP's defaults {tuning.before.batch_size}"
    if tuning.demand.batch_size is not None:
        largest = f"a batch of {tuning.demand.batch_size} was asked for"
    if not tuning.improvement:
        return f"Keep DDP's defaults: tuning would bring only {tuning.gain:+.2%} samples per second; {largest}."
    return f"{show_share(tuning.gain or 0.0, '+')} samples per second; {largest}."


def chosen(fit: Candidate) -> list[str]:
    """Choices of the plan besides fusing, a sentence each."""
    plan = fit.plan
    lines = [f"Sends {len(plan.buckets)} buckets" + ("" if plan.release else ", gradients kept until the update")]
    if plan.release:
        lines.append("Releases gradients: each layer is updated as soon as its bucket has arrived")
    if plan.recompute:
        lines.append(
            f"Recomputes {len(plan.recompute)} of {len(fit.workload.segments)} segments: {_some(plan.recompute)}"
        )
    if fit.sparse:
        densities = sorted({bucket.density for bucket in plan.buckets if bucket.density is not None})
        shares = " and ".join(f"{density:.3g}" for density in densities)
        where = "mirror weights" if plan.mirror else "residuals"
        lines.append(f"Sends {len(fit.sparse)} layers at density {shares}, the rest in {where}: {_some(fit.sparse)}")
    return lines


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
