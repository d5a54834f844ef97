"""The results of ``osf memory`` and ``osf tune --memory``: peaks, levels over a step, and plans for a batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from osfmodel.engine.memory import Level, Memory
from osfmodel.engine.strategies.holdings import OWNERS
from osfmodel.entities.display import show_bytes, show_predicted, show_predicted_time, show_share
from osfmodel.entities.files.documents import document_of, encode
from osfmodel.planning.memory import Candidate, MemoryTuning
from osfmodel.show.document import Result
from osfmodel.show.table import TERMINAL, Column, column, csv_row, for_people, json_row
from osfmodel.show.terminal import Console, empty_table, show_notes, show_title, table_of
from osfmodel.solve.verdicts import NO, YES

PEAKS: tuple[Column[Memory], ...] = (
    column("peak_bytes", "in all", lambda memory: memory.peak.bytes, show_bytes),
    column("peak_during", "when", lambda memory: memory.peak.during),
    column("peak_owners", None, lambda memory: dict(memory.peak.held)),
)
"""Columns of a plan's peak; on a terminal a line each, below the owners."""
LEVELS: tuple[Column[Level], ...] = (
    column("during", None, lambda level: level.during),
    column("start_s", None, lambda level: level.start),
    column("end_s", None, lambda level: level.end),
    column("bytes", None, lambda level: level.bytes),
)
"""Columns of a level."""
OWNERS_OF_LEVEL: Column[Level] = column("owners", None, lambda level: dict(level.held))
"""Column of a level's owners, only in JSON: CSV has no column for each owner."""


class FitRow(NamedTuple):
    """A plan that fits, and its role: ``before``, ``after`` or just ``tried``."""

    which: str
    candidate: Candidate


def compared(tuning: MemoryTuning) -> list[FitRow]:
    """DDP's defaults, if they fit, and the tuned plan."""
    found = [FitRow("after", tuning.after)]
    return found if tuning.before is None else [FitRow("before", tuning.before), *found]


CALLED = {"before": "DDP's defaults", "after": "tuned"}
"""Names of the two plans for people."""
WHICH: Column[FitRow] = column("which", "", lambda fit: fit.which, lambda which: CALLED.get(which, which))
FITS: tuple[Column[FitRow], ...] = (
    column("batch_size", "batch per worker", lambda fit: fit.candidate.batch_size),
    column("peak_bytes", "peak", lambda fit: fit.candidate.memory.peak.bytes, show_bytes),
    column("iteration_time_s", "iteration", lambda fit: fit.candidate.iteration_time, show_predicted_time),
    column("lower_bound_s", None, lambda fit: fit.candidate.bound),
    column("samples_per_s", "samples/s", lambda fit: fit.candidate.throughput, show_predicted),
    column("buckets", None, lambda fit: len(fit.candidate.plan.buckets)),
    column(None, "vs bound", lambda fit: fit.candidate.gap, show_share),
)
"""Columns of a plan that fits."""
SAVINGS: tuple[Column[FitRow], ...] = (
    column("release", None, lambda fit: fit.candidate.plan.release),
    column("recompute", None, lambda fit: list(fit.candidate.plan.recompute)),
    column("sparse", None, lambda fit: list(fit.candidate.sparse)),
)
"""Measures that save memory, in JSON alone."""


@dataclass(frozen=True, slots=True)
class MemoryPredicted(Result):
    """The result of ``osf memory``: memory and iteration time of each plan, by name.

    where:   cluster and worker count in words; "" for a single worker
    limit:   bytes of a GPU; None if not given
    lacking: what a plan needs of it, and what would make that smaller, by its name
    reserved: bytes that PyTorch's allocator takes, by plan
    chances: that a GPU has room for them
    fits:    YES, TIGHT or NO
    remedies: the command that says what would fit, if one does
    """

    workload: str
    batch_size: int | None
    memories: Mapping[str, Memory]
    times: Mapping[str, float]
    notes: Sequence[str] = ()
    where: str = ""
    limit: int | None = None
    lacking: Mapping[str, str] = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)
    chances: Mapping[str, float] = field(default_factory=dict)
    fits: Mapping[str, str] = field(default_factory=dict)
    remedies: str = ""

    def content(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "batch_size": self.batch_size,
            "limit_bytes": self.limit,
            "plans": [{"plan": name, **self._fits(name), **_memory(memory)} for name, memory in self.memories.items()],
            "notes": list(self.notes),
        }

    def _fits(self, name: str) -> dict[str, Any]:
        """Whether the plan fits and, if not surely, why; without a limit only what is reserved."""
        reserved = {"reserved_memory_bytes": self.reserved.get(name)}
        if self.limit is None:
            return reserved
        chance, fits = self.chances[name], self.fits[name]
        lacking = None if fits == YES else self.lacking[name]
        return {**reserved, "fits": fits, "fits_chance": chance, "lacking": lacking}

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"workload": self.workload, "plan": name, **csv_row(LEVELS, level)}
            for name, memory in self.memories.items()
            for level in memory.levels
        ]

    def show(self, console: Console) -> None:
        title = f"{self.workload}{self.where}, a batch of {self.batch_size} per worker"
        show_title(console, title)
        more = {"PyTorch may reserve": {name: show_bytes(size) for name, size in self.reserved.items()}}
        more["chance to fit"] = {name: show_share(chance) for name, chance in self.chances.items()}
        show_memory(console, self.memories, self.times, self.limit, more)
        if self.limit is not None and set(self.fits.values()) == {YES}:
            show_title(console, f"Fits into {show_bytes(self.limit)}.")
        for name, said in self.fits.items():
            if said != YES:
                tight = f"Tight, with a chance of {show_share(self.chances[name])}"
                head = "Does not fit" if said == NO else tight
                show_title(console, f"{head}: {name} {self.lacking[name]}.")
        if self.remedies:
            console.print(f"What fits, and what that costs: {self.remedies}", markup=False, soft_wrap=True)
        show_notes(console, self.notes)


class MemoryTuned(Result):
    """The result of ``osf tune --memory``; its document is itself a plan file."""

    def __init__(self, tuning: MemoryTuning, options: Mapping[str, Any] | None = None) -> None:
        self.tuning, self.options = tuning, options

    def content(self) -> dict[str, Any]:
        tuning = self.tuning
        return {
            "workload": tuning.workload.name,
            "cluster": tuning.cluster.name,
            "workers": tuning.workers,
            "limit_bytes": tuning.demand.limit,
            "largest_batch_size": tuning.largest,
            "before": None if tuning.before is None else _fit(tuning.before),
            "after": _fit(tuning.after),
            "notes": list(tuning.notes),
            "options": self.options,
            "plan": document_of(tuning.after.plan),
        }

    def rows(self) -> list[dict[str, Any]]:
        shared = {"workload": self.tuning.workload.name, "workers": self.tuning.workers}
        fits = [*compared(self.tuning), *(FitRow("tried", one) for one in self.tuning.tried)]
        return [{**shared, **csv_row((WHICH, *FITS), fit)} for fit in fits]

    def show(self, console: Console) -> None:
        tuning = self.tuning
        title = f"{tuning.workload.name} on {tuning.cluster.name}, {tuning.workers} workers, within "
        show_title(console, f"{title}{show_bytes(tuning.demand.limit)}")
        fits = compared(tuning)
        console.print(table_of((WHICH, *FITS), fits))
        show_title(console, _verdict(tuning))
        for line in chosen(tuning.after):
            console.print(f"{line}.", markup=False)
        show_notes(console, tuning.notes)
        console.print()
        memories = {WHICH.shown(fit): fit.candidate.memory for fit in fits}
        times = {WHICH.shown(fit): fit.candidate.iteration_time for fit in fits}
        show_memory(console, memories, times, tuning.demand.limit)
        console.print("For osf.execute: -o plan.json writes the plan.", markup=False)

    endings = ()
    """No endings: only the plan file itself holds the plan."""

    def code(self, ending: str) -> str:
        """The plan file, whatever its name ends in."""
        return encode(document_of(self.tuning.after.plan))

    def warnings(self) -> list[str]:
        return list(self.tuning.warnings)


def _fit(candidate: Candidate) -> dict[str, Any]:
    return {**json_row((*FITS, *SAVINGS), FitRow("", candidate)), **_memory(candidate.memory)}


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        **json_row(PEAKS, memory),
        "levels": [json_row((*LEVELS, OWNERS_OF_LEVEL), level) for level in memory.levels],
    }


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


def show_memory(
    console: Console,
    named: Mapping[str, Memory],
    times: Mapping[str, float],
    limit: int | None,
    more: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> None:
    """Print the owners at the peak, side by side, and the steps on one scale; ``more``: further rows, by name."""
    from rich.markup import escape

    table = empty_table(["at the peak", *map(escape, named)])
    peaks = [memory.peak for memory in named.values()]
    for owner in dict.fromkeys((*OWNERS, *(owner for peak in peaks for owner in peak.held))):
        if any(peak.held.get(owner) for peak in peaks):
            table.add_row(owner, *(show_bytes(peak.held.get(owner, 0)) for peak in peaks))
    for number, one in enumerate(for_people(PEAKS, TERMINAL)):
        cells = (escape(one.shown(memory)) for memory in named.values())
        table.add_row(one.heading(TERMINAL), *cells, style=None if number else "bold")
    for heading, said in more.items():
        if said:
            table.add_row(heading, *map(said.__getitem__, named))
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
