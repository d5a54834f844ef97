"""What a person sees of an explained trace: the verdict, a bar per part of the step, the buckets, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from osfmodel.diagnosis import CAUSES, COMPUTE, Explanation, Remedy
from osfmodel.diagnosis.bucket_rows import BucketRow
from osfmodel.diagnosis.findings import LEFT
from osfmodel.diagnosis.parts import Parts
from osfmodel.units import show_bytes, show_time

WIDTH = 40
"""Characters of the bar of a whole step."""
HELPS = 0.005
"""Remedies that bring a smaller part are not called such."""
BUCKET_COLUMNS = ("message", "size", "ready", "start", "end", "bus bandwidth", "{best}", "hidden", "exposed")
LEFT_OUT = ("hidden", "start", "ready", "end", "size")
"""Columns that a narrow terminal has no room for, the first to go first."""
ANY_WIDTH = 1000
SHORT = {"float32": "", "float16": "fp16", "bfloat16": "bf16"}
"""What is said of a message's type."""
LISTED = 24
"""Most buckets that are listed; all are in the other formats."""
SMALL = 0.001
"""Part of a step below which a cause is not listed."""
WORDS = {
    "compute": "computation",
    "transfer": "exposed transfer",
    "waiting": "waiting for ranks",
    "held": "held back",
    "copies": "copies",
    "input": "waiting for input",
    "idle": "idle",
}
"""What each part of a step is called."""


def bar(part: float, whole: float, width: int = WIDTH) -> str:
    """``part`` as a bar, eighths of a character included; ``whole`` is ``width`` characters."""
    eighths = round(8 * width * min(1.0, max(0.0, part / whole))) if whole else 0
    last: str = " ▏▎▍▌▋▊▉"[eighths % 8]
    return ("█" * (eighths // 8) + last).rstrip()


def show_explanation(console: Console, one: Explanation) -> None:
    """The verdict first; then where the time went, the causes, the buckets, and the remedies."""
    console.print(one.verdict, style="bold", markup=False)
    console.print()
    _show_parts(console, one)
    _show_causes(console, one)
    _show_ranks(console, one)
    _show_buckets(console, one.buckets, "of best" if one.cluster is None else "of possible")
    _show_remedies(console, one.remedies)
    for remark in one.remarks:
        console.print(f"Note: {remark}.", markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _show_parts(console: Console, one: Explanation) -> None:
    count = len(one.steps)
    over = f"middle third of {count} steps" if count > 1 else "one step"
    ranks = "" if len(one.ranks) == 1 else f", mean of {len(one.ranks)} ranks"
    title = f"{one.name}: {one.workers} workers, a step takes {show_time(one.step_time)} ({over}{ranks})"
    console.print(title, style="bold", markup=False)
    table = _table("where it went", "time", "", "")
    table.columns[-1].justify = "left"
    for field in fields(Parts):
        seconds = getattr(one.parts, field.name)
        if seconds is None:
            if one.buckets and one.workers > 1:
                table.add_row(WORDS[field.name], "not known", "", "")
        elif seconds or field.name == "compute":
            share = f"{seconds / one.step_time:.1%}"
            table.add_row(WORDS[field.name], show_time(seconds), share, bar(seconds, one.step_time))
    console.print(table)


def _show_causes(console: Console, one: Explanation) -> None:
    console.print()
    table = _table("what it is due to", "costs", "", "without it")
    table.columns[-1].justify = "left"
    rows = sorted(((name, one.gains[name], cause.meaning) for name, cause in CAUSES.items()), key=lambda row: -row[1])
    for name, seconds, meaning in [*rows, (COMPUTE, one.left, LEFT)]:
        if seconds >= SMALL * one.step_time:
            table.add_row(name, show_time(seconds), f"{seconds / one.step_time:.1%}", meaning)
    console.print(table)


def _show_ranks(console: Console, one: Explanation) -> None:
    if len(one.ranks) < 2:
        return
    console.print()
    table = _table("rank", "own work", "computes", "waits for ranks", "waits for input", "slowest in")
    for rank in one.ranks:
        waiting = "" if rank.parts.waiting is None else show_time(rank.parts.waiting)
        cells = (show_time(rank.work), show_time(rank.parts.compute), waiting, show_time(rank.parts.input))
        table.add_row(str(rank.rank), *cells, f"{rank.slowest} of {len(one.steps)}")
    console.print(table)


def _show_buckets(console: Console, rows: Sequence[BucketRow], best: str) -> None:
    """As many columns as there is room for, each message on a line."""
    if not rows:
        return
    console.print()
    shown = sorted(sorted(rows, key=lambda row: -row.exposed)[:LISTED], key=lambda row: row.number)
    for count in range(len(LEFT_OUT) + 1):
        table = _bucket_table(shown, best, LEFT_OUT[:count])
        if console.measure(table, options=console.options.update(width=ANY_WIDTH)).maximum <= console.width:
            break
    console.print(table)
    if count:
        console.print(f"No room for {' and '.join(LEFT_OUT[:count])}: a wider terminal, or --format csv.", markup=False)
    if len(rows) > len(shown):
        console.print(f"The {len(shown)} of {len(rows)} messages with most exposed; all: --format csv.", markup=False)


def _bucket_table(rows: Sequence[BucketRow], best: str, left_out: Sequence[str]) -> Table:
    columns = [name for name in BUCKET_COLUMNS if name not in left_out]
    table = _table(*(name.format(best=best) for name in columns))
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        cells = _bucket_cells(row)
        table.add_row(*(cells[name] for name in columns))
    return table


def _bucket_cells(row: BucketRow) -> dict[str, str]:
    """By column."""
    dtype = SHORT.get(row.dtype or "float32", row.dtype)
    times = [show_time(time) for time in (row.ready, row.start, row.end)]
    cells = (
        escape(f"{row.number} {row.kind.replace('_', '-')} {dtype}".strip()),
        "" if row.bytes is None else show_bytes(row.bytes),
        *times,
        "" if row.bandwidth is None else f"{show_bytes(row.bandwidth)}/s",
        "" if not row.bandwidth or not row.possible else f"{row.bandwidth / row.possible:.0%}",
        show_time(row.hidden),
        show_time(row.exposed),
    )
    return dict(zip(BUCKET_COLUMNS, cells, strict=True))


def _show_remedies(console: Console, remedies: Sequence[Remedy]) -> None:
    """A table of those that help; those that do not, and those without a price, in a line each."""
    if not remedies:
        return
    helping = [remedy for remedy in remedies if (remedy.throughput or 0.0) >= 1 + HELPS]
    if helping:
        console.print()
        table = _table("what would help", "step", "samples/s", "by", "")
        table.columns[-1].justify = "left"
        for remedy in helping:
            step, speed = show_time(remedy.step_time or 0.0), f"{(remedy.throughput or 1.0) - 1:+.1%}"
            table.add_row(escape(remedy.what), step, speed, remedy.by, escape(remedy.note))
        console.print(table)
    others = [
        f"{remedy.what} ({round(remedy.throughput - 1, 3) + 0.0:+.1%})"
        for remedy in remedies
        if remedy.throughput is not None and remedy not in helping
    ]
    if others:
        console.print()
        console.print(f"Would not help: {'; '.join(others)}.", markup=False)
    for remedy in remedies:
        if remedy.throughput is None:
            console.print(f"{remedy.what}: {remedy.note}.", markup=False)
