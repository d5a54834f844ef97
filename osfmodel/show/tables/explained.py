"""What an explained trace is told in, on a screen and on a page: titles, names of parts, cells of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from osfmodel.diagnosis import Explanation, RankParts, Remedy
from osfmodel.diagnosis.causes import all_costs
from osfmodel.diagnosis.explanation import BucketRow
from osfmodel.diagnosis.waits import Parts
from osfmodel.entities.units import show_bytes, show_time

HELPS = 0.005
"""Remedies that bring a smaller part are not called such."""
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
RANK_HEADS = ("rank", "own work", "computes", "waits for ranks", "waits for input", "slowest in")
"""Heads of the table of ranks."""
SHORT = {"float32": "", "float16": "fp16", "bfloat16": "bf16"}
"""What is said of a message's type."""


def title(one: Explanation) -> str:
    """Of how many workers, how long a step is, and of what that is the mean."""
    count = len(one.steps)
    over = f"middle third of {count} steps" if count > 1 else "one step"
    ranks = "" if len(one.ranks) == 1 else f", mean of {len(one.ranks)} ranks"
    workers = "1 worker" if one.workers == 1 else f"{one.workers} workers"
    return f"{workers}, a step takes {show_time(one.step_time)} ({over}{ranks})"


def message_heads(one: Explanation) -> tuple[str, ...]:
    """Heads of the table of messages."""
    compared = "of best" if one.cluster is None else "of possible"
    return ("message", "size", "ready", "start", "end", "bus bandwidth", compared, "hidden", "exposed")


def whose_messages(one: Explanation) -> str:
    """Of which rank they are; nothing where one alone is traced."""
    return f"Messages of rank {one.sender}, the median by own work." if len(one.ranks) > 1 else ""


def parts(one: Explanation) -> list[tuple[str, float | None]]:
    """(Name, seconds) of what a step has of each part; None of what the trace does not tell."""
    found = [(field.name, getattr(one.parts, field.name)) for field in fields(Parts)]
    unknown = bool(one.buckets) and one.workers > 1
    return [(name, seconds) for name, seconds in found if seconds or name == "compute" or (seconds is None and unknown)]


def costs(one: Explanation) -> list[tuple[str, float, str]]:
    """(Cause, seconds, what holds without it), the costliest first, then what is left; none that is hardly any.

    Then what the replay missed of the step, so that all of them add up to it.
    """
    *rows, left = all_costs(one)
    missed = ("not replayed", one.step_time - one.replayed, "what a replay of the step as traced differs by")
    ordered = [*sorted(rows, key=lambda row: -row[1]), left, missed]
    return [row for row in ordered if abs(row[1]) >= SMALL * one.step_time]


def rank_cells(rank: RankParts, steps: int) -> tuple[str, ...]:
    """A row under RANK_HEADS."""
    waiting = "" if rank.parts.waiting is None else show_time(rank.parts.waiting)
    times = (show_time(rank.work), show_time(rank.parts.compute), waiting, show_time(rank.parts.input))
    return (str(rank.rank), *times, f"{rank.slowest} of {steps}")


def most_exposed(rows: Sequence[BucketRow], most: int) -> list[BucketRow]:
    """As many as that, in their order."""
    return sorted(sorted(rows, key=lambda row: -row.exposed)[:most], key=lambda row: row.number)


def message_cells(row: BucketRow) -> tuple[str, ...]:
    """A row under message_heads."""
    name = f"{row.number} {row.kind.replace('_', '-')} {SHORT.get(row.dtype or 'float32', row.dtype)}".strip()
    size = "" if row.bytes is None else show_bytes(row.bytes)
    speed = "" if row.bandwidth is None else f"{show_bytes(row.bandwidth)}/s"
    part = "" if not row.bandwidth or not row.possible else f"{row.bandwidth / row.possible:.0%}"
    times = [show_time(time) for time in (row.ready, row.start, row.end)]
    return (name, size, *times, speed, part, show_time(row.hidden), show_time(row.exposed))


def helping(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Those that help, the most first, as they stand."""
    return [remedy for remedy in remedies if (remedy.throughput or 0.0) >= 1 + HELPS]


def faster(remedy: Remedy) -> str:
    """By how much more samples a second."""
    return f"{round((remedy.throughput or 1.0) - 1, 3) + 0.0:+.1%}"


def others(remedies: Sequence[Remedy]) -> list[str]:
    """What would not help, in a sentence, and what has no price, in one for each reason."""
    useful = helping(remedies)
    useless = [one for one in remedies if one.throughput is not None and one not in useful]
    named = "; ".join(f"{one.what} ({faster(one)})" for one in useless)
    reasons: dict[str, list[str]] = {}
    for one in remedies:
        if one.throughput is None:
            reasons.setdefault(one.note, []).append(one.what)
    unpriced = [f"{'; '.join(them)}: {why}." for why, them in reasons.items()]
    return [*([f"Would not help: {named}."] if named else []), *unpriced]
