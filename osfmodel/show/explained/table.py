"""The tables of an explained trace: titles, names of parts, columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from osfmodel.diagnosis.causes import CAUSES, label_of
from osfmodel.diagnosis.explanation import (
    COMPUTE,
    COMPUTE_SUMMARY,
    UNEXPLAINED,
    BucketRow,
    Explanation,
    GroupParts,
    RankParts,
    Remedy,
)
from osfmodel.diagnosis.waits import Parts
from osfmodel.entities.display import how_many, show_bus_rate, show_bytes, show_predicted_time, show_share, show_time
from osfmodel.show.table import Column, column, filled, percent

HELPS = 0.005
"""Smallest gain for which a remedy is listed as one."""
SMALL = 0.001
"""Fraction of a step below which a cause is not listed."""
WORDS = {
    "compute": "computation",
    "transfer": "exposed transfer",
    "waiting": "waiting for ranks",
    "held": "ready but queued",
    "copies": "copies",
    "input": "waiting for input",
    "idle": "idle",
}
"""Name of each part of a step."""
MOST_RANKS = 6
"""Ranks of a process group beyond which they are not listed one by one."""
SHORT = {"float32": "", "float16": "fp16", "bfloat16": "bf16"}
"""Short name of a message's dtype."""


class PartOfStep(NamedTuple):
    """A part of a step, a key of WORDS; its seconds, None if the trace does not tell; and the step's seconds."""

    name: str
    seconds: float | None
    step_time: float


PARTS: tuple[Column[PartOfStep], ...] = (
    column(None, "where it went", lambda part: WORDS[part.name]),
    Column(
        None,
        "time",
        lambda part: part.seconds,
        lambda part: "not known" if part.seconds is None else show_time(part.seconds),
    ),
    column(
        None,
        "",
        lambda part: None if part.seconds is None else part.seconds / part.step_time,
        percent,
        on_page="of the step",
    ),
)
"""Columns of a part of a step; documents have all parts in one record, see SECONDS."""


class CauseCost(NamedTuple):
    """A cause, the seconds that it costs, the state without it, and the seconds of the step."""

    name: str
    seconds: float
    summary: str
    step_time: float


COSTS: tuple[Column[CauseCost], ...] = (
    column("cause", "cause", lambda cost: cost.name, label_of),
    column("costs_s", "costs", lambda cost: cost.seconds, show_time),
    column("part_of_step", "", lambda cost: cost.seconds / cost.step_time, percent, on_page="of the step"),
    column("without_it", "if fixed", lambda cost: cost.summary),
)
"""Columns of a cause."""


def _seconds(name: str, head: str | None = None) -> Column[Parts]:
    return column(f"{name}_s", head, lambda parts: getattr(parts, name), show_time)


SECONDS: tuple[Column[Parts], ...] = (
    _seconds("compute", "computes"),
    _seconds("transfer"),
    _seconds("waiting", "waits for ranks"),
    _seconds("held"),
    _seconds("copies"),
    _seconds("input", "waits for input"),
    _seconds("idle"),
)
"""Columns of the parts of a step, of one rank or of the mean of the ranks."""


class RankRow(NamedTuple):
    """A rank, and the number of steps."""

    rank: RankParts
    steps: int


def _of_rank(part: Column[Parts]) -> Column[RankRow]:
    return Column(part.key, part.head, lambda row: part.value(row.rank.parts), lambda row: part.shown(row.rank.parts))


RANKS: tuple[Column[RankRow], ...] = (
    column("rank", "rank", lambda row: row.rank.rank),
    column("own_work_s", "own work", lambda row: row.rank.work, show_time),
    Column(
        "slowest_steps",
        "slowest in",
        lambda row: row.rank.slowest,
        lambda row: f"{row.rank.slowest} of {row.steps}",
        after="input_s",
    ),
    *map(_of_rank, SECONDS),
)
"""Columns of a rank."""


def rank_rows(one: Explanation) -> list[RankRow]:
    """A row for each rank."""
    return [RankRow(rank, len(one.steps)) for rank in one.ranks]


def _message(row: BucketRow) -> str:
    about = "" if row.module is None else row.module or "root"
    words = (str(row.number), row.kind.replace("_", "-"), SHORT.get(row.dtype or "float32", row.dtype), about)
    return " ".join(filter(None, words))


def _of_possible(row: BucketRow) -> str:
    return "" if not row.bandwidth or not row.possible else f"{row.bandwidth / row.possible:.0%}"


MESSAGES: tuple[Column[BucketRow], ...] = (
    Column("bucket", "message", lambda row: row.number, _message),
    column("kind", None, lambda row: row.kind),
    column("dtype", None, lambda row: row.dtype),
    column("gradients", None, lambda row: row.gradients),
    column("module", None, lambda row: row.module),
    column("backward", None, lambda row: None if row.module is None else row.backward),
    column("bytes", "size", lambda row: row.bytes, show_bytes),
    column("ready_s", "ready", lambda row: row.ready, show_time),
    column("issued_s", None, lambda row: row.issued),
    column("start_s", "start", lambda row: row.start, show_time),
    column("end_s", "end", lambda row: row.end, show_time),
    column("waiting_s", None, lambda row: row.waiting),
    column("transfer_s", None, lambda row: row.transfer),
    column("wire_s", None, lambda row: row.wire),
    column("bus_bandwidth_bytes_per_s", "bus bandwidth", lambda row: row.bandwidth, show_bus_rate),
    Column("possible_bus_bandwidth_bytes_per_s", "of best", lambda row: row.possible, _of_possible),
    column("hidden_s", "hidden", lambda row: row.hidden, show_time),
    column("exposed_s", "exposed", lambda row: row.exposed, show_time),
)
"""Columns of a message."""


def kind_words(row: GroupParts) -> str:
    """The kind of a row; of all-gathers of sharded parameters also the pass, since both have them."""
    kind = row.kind.replace("_", "-")
    return kind if row.backward is None else f"{kind}, {'backward' if row.backward else 'forward'}"


def group_words(row: GroupParts) -> str:
    """The description of a row's process groups, and their ranks."""
    size = "" if row.size is None else how_many(row.size, "rank")
    ranks = f"ranks {_ranges(row.members)}" if row.members else size
    many = f"{row.groups} groups of {size}" if row.groups > 1 and size else ranks
    return ": ".join(filter(None, (row.group, many)))


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in few words: "0-3", "0, 2", or "0, 8 ... 56" if they are evenly apart."""
    steps = {after - before for before, after in pairwise(numbers)}
    if len(steps) == 1 and len(numbers) > 2:
        return f"{numbers[0]}-{numbers[-1]}" if steps == {1} else f"{numbers[0]}, {numbers[1]} ... {numbers[-1]}"
    return ", ".join(map(str, numbers)) if len(numbers) <= MOST_RANKS else f"{numbers[0]} ... {numbers[-1]}"


def _part_of(bandwidth: float | None, most: float | None) -> float | None:
    return bandwidth / most if bandwidth and most else None


def whole_percent(value: float) -> str:
    """A fraction in whole percent."""
    return f"{value:.0%}"


def _late(row: GroupParts) -> str:
    return "" if row.late is None else f"{row.late} ({whole_percent(row.late_share)})"


GROUP_PARTS: tuple[Column[GroupParts], ...] = (
    Column("process_group", "process group", lambda row: row.group, group_words),
    column("groups", None, lambda row: row.groups),
    column("ranks", None, lambda row: row.size),
    column("members", None, lambda row: list(row.members)),
    Column("kind", "collective", lambda row: row.kind, kind_words),
    column("backward", None, lambda row: row.backward),
    column("count", "count", lambda row: row.count, lambda count: f"{count:.3g}"),
    column("bytes", "size", lambda row: row.bytes, show_bytes),
    column("transfer_s", "transfer", lambda row: row.transfer, show_time),
    column("hidden_s", "hidden", lambda row: row.hidden, show_time),
    column("hidden_by", "by", lambda row: row.hidden_by),
    column("exposed_s", "exposed", lambda row: row.exposed, show_time),
    column("bus_bandwidth_bytes_per_s", "bandwidth", lambda row: row.bandwidth, show_bus_rate),
    column("best_bus_bandwidth_bytes_per_s", None, lambda row: row.best),
    column("of_best", "of best", lambda row: _part_of(row.bandwidth, row.best), whole_percent),
    column("possible_bus_bandwidth_bytes_per_s", None, lambda row: row.possible),
    column("of_possible", "of possible", lambda row: _part_of(row.bandwidth, row.possible), whole_percent),
    column("waiting_s", "waiting", lambda row: row.waiting, show_time),
    column("skew_s", "skew", lambda row: row.skew, show_time),
    Column("late_rank", "late rank", lambda row: row.late, _late),
    column("late_share", None, lambda row: row.late_share if row.late is not None else None),
)
"""Columns of the collectives of a kind in a process group."""


def group_columns(one: Explanation) -> list[Column[GroupParts]]:
    """GROUP_PARTS on a screen or page, without columns that are empty for every row."""
    return filled(GROUP_PARTS, one.collectives)


def messages(one: Explanation) -> list[Column[BucketRow]]:
    """MESSAGES, with the heading that says what bandwidth is compared with."""
    compared = "of best" if one.cluster is None else "of possible"
    return [replace(found, head=compared) if found.head == "of best" else found for found in MESSAGES]


def faster(remedy: Remedy) -> str:
    """Gain in samples per second, as a percentage."""
    return show_share(round((remedy.throughput or 1.0) - 1, 3) + 0.0, "+")


ESTIMATES = {"model": "predicted", "replay": "replayed"}
"""Words for how a remedy's step time was estimated."""
REMEDIES: tuple[Column[Remedy], ...] = (
    column("remedy", None, lambda remedy: remedy.name),
    column("what", "what would help", lambda remedy: remedy.what),
    column("step_time_s", "step", lambda remedy: remedy.step_time, show_predicted_time, on_page="a step then"),
    Column("throughput_factor", "samples/s", lambda remedy: remedy.throughput, faster),
    column("by", "estimate", lambda remedy: remedy.by, ESTIMATES.__getitem__),
    column("note", "", lambda remedy: remedy.note, on_page="note"),
)
"""Columns of a remedy."""


def title(one: Explanation) -> str:
    """Number of workers, step time, and the steps and ranks over which it is the mean."""
    count = len(one.steps)
    over = f"middle third of {count} steps" if count > 1 else "one step"
    ranks = "" if len(one.ranks) == 1 else f", mean of {len(one.ranks)} ranks"
    workers = "1 worker" if one.workers == 1 else f"{one.workers} workers"
    return f"{workers}, a step takes {show_time(one.step_time)} ({over}{ranks})"


def whose_messages(one: Explanation) -> str:
    """The rank whose messages are listed; "" if only one rank is traced."""
    return f"Messages of rank {one.sender}, the median by own work." if len(one.ranks) > 1 else ""


def parts(one: Explanation) -> list[PartOfStep]:
    """The parts of a step that are not zero; with None for those that the trace does not tell."""
    found = [PartOfStep(name, getattr(one.parts, name), one.step_time) for name in WORDS]
    unknown = bool(one.buckets) and one.workers > 1
    return [row for row in found if row.seconds or row.name == "compute" or (row.seconds is None and unknown)]


def causes(one: Explanation) -> list[CauseCost]:
    """The cost of each cause, in the order in which causes are taken away, then the rest of the step."""
    rows = [
        (name, one.gains[name], cause.summary) for name, cause in CAUSES.items() if one.sharded or not cause.sharded
    ]
    return [CauseCost(*row, one.step_time) for row in (*rows, (COMPUTE, one.left, COMPUTE_SUMMARY))]


def costs(one: Explanation) -> list[CauseCost]:
    """The cost of each cause, the costliest first, then the rest of the step; negligible ones are left out.

    Last comes the part of the step that the replay does not have, so that all of them add up to the step.
    """
    *rows, left = causes(one)
    words = "in the traced step, not in its replay"
    missed = CauseCost(UNEXPLAINED, one.missed, words, one.step_time)
    ordered = [*sorted(rows, key=lambda row: -row.seconds), left, missed]
    return [row for row in ordered if row.seconds >= SMALL * one.step_time]


def most_exposed(rows: Sequence[BucketRow], most: int) -> list[BucketRow]:
    """The ``most`` messages with the longest exposed time, in their order."""
    return sorted(sorted(rows, key=lambda row: -row.exposed)[:most], key=lambda row: row.number)


def helping(remedies: Sequence[Remedy]) -> list[Remedy]:
    """The remedies that help, in their order, the best first."""
    return [remedy for remedy in remedies if (remedy.throughput or 0.0) >= 1 + HELPS]


def others(remedies: Sequence[Remedy]) -> list[str]:
    """One sentence that lists remedies that would not help, and one for each reason why others have no price."""
    useful = helping(remedies)
    useless = [one for one in remedies if one.throughput is not None and one not in useful]
    named = "; ".join(f"{one.what} ({faster(one)})" for one in useless)
    reasons: dict[str, list[str]] = {}
    for one in remedies:
        if one.throughput is None:
            reasons.setdefault(one.note, []).append(one.what)
    unpriced = [f"{'; '.join(them)}: {why}." for why, them in reasons.items()]
    return [*([f"Would not help: {named}."] if named else []), *unpriced]
