"""Several ranks of a job as one: a common clock, and the same identity for a collective on all ranks.

Collectives are matched by what :func:`~entities.trace.keys_of` calls them: the library's number where all ranks
have it, else the place in the step. A collective begins to transfer when the last rank arrives: before, the others
wait. Clocks of hosts differ: where ranks are not known to share a host, a rank's clock is moved so that the collectives
that it has in common with the first rank end together, by the median of the differences. Names of hosts may be the same
where hosts are not: ranks of one name share a clock only if the collectives that they have in common overlap on it.

Sizes of collectives and gradients that a trace lacks come from its own gradients, DDP's log, or the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from osfmodel.entities.display import show_time
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError
from osfmodel.entities.timeline import Interval
from osfmodel.entities.trace import Collective, GradientReady, Key, RankTrace, Step, Trace, keys_of
from osfmodel.entities.workload import Gradients
from osfmodel.formats.source_text import Hints, Text, parse, require
from osfmodel.formats.traces.network import carried

Sized = Callable[[Step], Step]


def sized(trace: Trace, hints: Hints) -> Trace:
    """The trace with the sizes that it lacks, as far as they can be found.

    A model gives its gradients in ready order, DDP's log its buckets; both must have as many as the trace has in some
    step. Raises DataError, with both counts, where they do not.
    """
    if hints.model is not None:
        gradients = hints.model.gradients
        _require(
            trace,
            lambda step: len(gradients) in (len(step.gradients), len(step.reductions)),
            f"the model {hints.model.name!r} has {len(gradients)} gradients",
        )
        trace = _mapped(trace, _by_model(gradients))
    if hints.ddp_logging is not None:
        try:
            sizes, dtype = _logged(hints.ddp_logging)
        except DataError as error:
            raise DataError(f"{hints.ddp_logging.file}: {error}") from None
        _require(
            trace,
            lambda step: len(step.reductions) == len(sizes),
            f"{hints.ddp_logging.file}: DDP's log has {len(sizes)} buckets",
        )
        trace = _mapped(trace, _by_buckets(sizes, dtype))
    return _mapped(trace, _by_gradients)


def _mapped(trace: Trace, change: Sized) -> Trace:
    ranks = [replace(rank, steps=tuple(map(change, rank.steps))) for rank in trace.ranks]
    return replace(trace, ranks=tuple(ranks))


def _require(trace: Trace, fits: Callable[[Step], bool], told: str) -> None:
    """Raise DataError if no step fits what was given, whether sizes are known already or not."""
    if not any(fits(step) for rank in trace.ranks for step in rank.steps):
        step = trace.ranks[0].steps[-1]
        seen = f"{len(step.reductions)} all-reduces of gradients and {len(step.gradients)} gradients"
        raise DataError(f"{told}, a step of the trace {trace.name!r} {seen}: leave it out, or give one of that run")


def _resized(step: Step, sizes: Sequence[tuple[int, str]], by: str) -> Step:
    """The step with these elements and dtypes for reductions that have none."""
    known = {id(one): size for one, size in zip(step.reductions, sizes, strict=True)}

    def changed(one: Collective) -> Collective:
        if id(one) not in known or one.elements is not None:
            return one
        elements, dtype = known[id(one)]
        return replace(one, elements=elements, dtype=one.dtype or dtype, sized_by=by)

    return replace(step, collectives=tuple(map(changed, step.collectives)))


def _by_buckets(sizes: Sequence[int], dtype: str) -> Sized:
    """Sizes for a step with as many all-reduces of gradients as buckets, in the order in which they are sent."""

    def change(step: Step) -> Step:
        if len(step.reductions) != len(sizes):
            return step
        kinds = [one.dtype or dtype for one in step.reductions]
        known = [(size // element_bytes(kind), kind) for size, kind in zip(sizes, kinds, strict=True)]
        return _resized(step, known, "ddp-logging")

    return change


def _by_model(gradients: Gradients) -> Sized:
    """Sizes by gradients in ready order; if autograd's are not recorded, one all-reduce for each."""
    elements = [size // element_bytes(dtype) for size, dtype in zip(gradients.sizes, gradients.dtypes, strict=True)]
    known = list(zip(elements, gradients.dtypes, strict=True))

    def change(step: Step) -> Step:
        if len(step.gradients) == len(known):
            rows = zip(step.gradients, gradients.names, known, strict=True)
            step = replace(step, gradients=tuple(_named(*row) for row in rows))
            return _by_gradients(step, "model")
        return _resized(step, known, "model") if len(step.reductions) == len(known) else step

    return change


def _named(one: GradientReady, name: str, size: tuple[int, str]) -> GradientReady:
    """The gradient with its name, if its size is the same or unknown."""
    if one.elements is not None and one.elements != size[0]:
        return one
    return replace(one, name=name, elements=size[0], dtype=one.dtype or size[1])


def _by_gradients(step: Step, by: str = "gradients") -> Step:
    """The step with sizes for all-reduces from the gradients that they carry."""
    if all(one.elements is not None for one in step.reductions):
        return step
    messages = carried(step)
    if messages is None or any(one.elements is None or one.dtype is None for message in messages for one in message):
        return step
    sizes = [(sum(one.elements or 0 for one in message), message[0].dtype or "") for message in messages]
    return _resized(step, sizes, by)


def _logged(text: Text) -> tuple[list[int], str]:
    """Bytes of the buckets in the order in which they are sent, and their dtype."""
    log = parse(text)
    sizes = [text.whole(1, size) for size in require(text, log, "rebuilt_bucket_sizes", str).split(",") if size.strip()]
    if not sizes:
        raise DataError(f"{text.file}: names no buckets: log after a few steps, when DDP has rebuilt them")
    written = str(log.get("dtypes", "float")).partition(",")[0].strip()
    return sizes, {"half": "float16", "double": "float64", "bfloat16": "bfloat16"}.get(written, "float32")


TOLD = 1e-3
"""Seconds by which a clock may be moved without a remark."""
SEVERAL_RUNS = 1e-2
"""Seconds between the ends of a short collective on busy hosts that may still belong to one run."""
FARTHEST = 600.0
"""Largest difference in seconds between clocks of a job: beyond it the traces are of several runs."""
TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that end at the same time on all ranks, not before all have arrived."""


def keyed(rank: RankTrace) -> dict[Key, Collective]:
    """The collectives of a rank by their identity on all ranks."""
    return {key: one for step in rank.steps for key, one in zip(keys_of(step), step.collectives, strict=True)}


def numbered_alike(ranks: Sequence[RankTrace]) -> list[RankTrace]:
    """The ranks without the library's numbers of collectives, unless every collective on record has one."""
    if all(one.sequence is not None for rank in ranks for step in rank.steps for one in step.collectives):
        return list(ranks)
    return [replace(rank, steps=tuple(map(_unnumbered, rank.steps))) for rank in ranks]


def _unnumbered(step: Step) -> Step:
    return replace(step, collectives=tuple(replace(one, sequence=None) for one in step.collectives))


def joined(ranks: Sequence[RankTrace], hosts: Sequence[str]) -> tuple[tuple[RankTrace, ...], list[str]]:
    """The ranks on one clock with arrivals filled in, and remarks on that."""
    remarks: list[str] = []
    shifts = [0.0]
    first = keyed(ranks[0])
    for rank, host in zip(ranks[1:], hosts[1:], strict=True):
        shared = _ended_together(first, keyed(rank))
        differences = [_difference(*pair) for pair in shared]
        named_alike = bool(host) and host == hosts[0]
        shift = 0.0
        if differences and (not named_alike or _apart(differences)):
            shift = median(late for late, _ in differences)
        several_runs = _apart([(late - shift, least) for late, least in differences], SEVERAL_RUNS)
        if several_runs and named_alike and _overlap(shared):  # one clock, and ends that a busy host told late
            shift, several_runs = 0.0, False
        _require_one_time(ranks[0], rank, shift if differences else ranks[0].steps[0].start - rank.steps[0].start)
        if abs(shift) > TOLD:
            alike = f"; both hosts are called {host}, but their clocks are not one" if named_alike else ""
            remarks.append(
                f"the clock of rank {rank.rank} is moved by {show_time(abs(shift))}, so that the collectives that it "
                f"shares with rank {ranks[0].rank} end together{alike}"
            )
        if several_runs:
            raise DataError(
                f"{ranks[0].file} and {rank.file} do not fit together: on no one clock do their collectives overlap: "
                "give the files of one run, of the same steps"
            )
        shifts.append(shift)
    earliest = min(shifts)  # no time on any clock is below 0, and none is to be
    shifted = [moved(rank, shift - earliest) for rank, shift in zip(ranks, shifts, strict=True)]
    tables = [keyed(rank) for rank in shifted]
    _require_one_run(ranks, tables)
    arrivals, unlike = _arrivals(tables)
    if unlike:
        remarks.append(
            f"{unlike} collectives are not on the record of all ranks of their group, or are of different sizes there: "
            "what was waited for in them is not known"
        )
    return tuple(_arrived(rank, arrivals) for rank in shifted), remarks


def _require_one_time(first: RankTrace, rank: RankTrace, apart: float) -> None:
    if abs(apart) > FARTHEST:
        raise DataError(
            f"{first.file} and {rank.file} do not fit together: they were recorded {show_time(abs(apart))} apart: "
            "give the files of one run"
        )


Pair = tuple[Collective, Collective]


def _ended_together(first: Mapping[Key, Collective], other: Mapping[Key, Collective]) -> list[Pair]:
    """The collectives that both have and that end at one time on both; all-to-alls only where there are no others.

    Ranks that get different numbers of bytes in an all-to-all do not end it together.
    """
    shared = [(one, other[key]) for key, one in first.items() if key in other and one.kind in TOGETHER]
    return [pair for pair in shared if pair[0].kind != "all_to_all"] or shared


def _difference(one: Collective, twin: Collective) -> tuple[float, float]:
    """Seconds by which a collective ends earlier on the other rank, and the shorter of its two times."""
    return one.end - twin.end, min(one.end - one.start, twin.end - twin.start)


def _apart(differences: Sequence[tuple[float, float]], slack: float = TOLD) -> bool:
    """Whether the ends of most collectives lie further apart than these and ``slack`` take: on one clock none do."""
    return bool(differences) and median(abs(late) - max(least, slack) for late, least in differences) > 0


def _overlap(shared: Sequence[Pair]) -> bool:
    """Whether most collectives have begun on both ranks before they end on either, as on one clock they must."""
    return 2 * sum(max(one.start, twin.start) <= min(one.end, twin.end) for one, twin in shared) > len(shared)


def _require_one_run(ranks: Sequence[RankTrace], tables: Sequence[Mapping[Key, Collective]]) -> None:
    """Raise DataError if most collectives that a rank shares with the first differ there."""
    for rank, table in zip(ranks[1:], tables[1:], strict=True):
        shared = [(one, table[key]) for key, one in tables[0].items() if key in table]
        unlike = sum(not _alike(pair) for pair in shared)
        if 2 * unlike > len(shared):
            raise DataError(
                f"{ranks[0].file} and {rank.file} do not fit together: {unlike} of {len(shared)} collectives that "
                "they share are of other kinds or sizes: give the files of one run, of the same steps"
            )


def _alike(seen: Sequence[Collective]) -> bool:
    """Whether all can be the same collective: of one kind, and of one size if their kind has equal sizes."""
    return len({(one.kind, one.elements if one.kind == "all_reduce" else None) for one in seen}) == 1


def _arrivals(tables: Sequence[Mapping[Key, Collective]]) -> tuple[dict[Key, float], int]:
    """Arrival of the last rank at each collective that its group saw alike, and the number of other collectives."""
    arrivals: dict[Key, float] = {}
    unlike = 0
    for key in dict.fromkeys(key for table in tables for key in table):
        seen = [table[key] for table in tables if key in table]
        members = seen[0].workers or len(tables)
        if len(seen) >= members and _alike(seen):
            arrivals[key] = max(one.start for one in seen)
        else:
            unlike += 1
    return arrivals, unlike


def _arrived(rank: RankTrace, arrivals: Mapping[Key, float]) -> RankTrace:
    found = {id(one): arrivals.get(key) for key, one in keyed(rank).items()}
    steps = []
    for step in rank.steps:
        known = tuple(replace(one, arrival=found.get(id(one))) for one in step.collectives)
        steps.append(replace(step, collectives=known))
    return replace(rank, steps=tuple(steps))


def moved(rank: RankTrace, shift: float) -> RankTrace:
    """The rank with all times later by ``shift`` seconds."""
    return replace(rank, steps=tuple(_moved(step, shift) for step in rank.steps)) if shift else rank


def _moved(step: Step, shift: float) -> Step:
    def later(interval: Interval) -> Interval:
        return interval[0] + shift, interval[1] + shift

    def maybe(interval: Interval | None) -> Interval | None:
        return None if interval is None else later(interval)

    return replace(
        step,
        start=step.start + shift,
        end=step.end + shift,
        compute=tuple(map(later, step.compute)),
        copies=tuple(map(later, step.copies)),
        inputs=tuple(map(later, step.inputs)),
        collectives=tuple(
            replace(one, start=one.start + shift, end=one.end + shift, issued=_maybe(one.issued, shift))
            for one in step.collectives
        ),
        gradients=tuple(
            replace(one, ready=one.ready + shift, accumulated=_maybe(one.accumulated, shift)) for one in step.gradients
        ),
        forward=maybe(step.forward),
        backward=maybe(step.backward),
        update=maybe(step.update),
        uses=tuple(replace(use, start=use.start + shift, end=use.end + shift) for use in step.uses),
    )


def _maybe(time: float | None, shift: float) -> float | None:
    return None if time is None else time + shift
