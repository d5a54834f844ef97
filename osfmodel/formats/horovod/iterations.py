"""The iterations in a Horovod timeline: groups of tensors that were fused, when, and the time of their collectives.

Tensors form one fused group if they have one dtype, went through the fusion buffer, began one after the other
with nothing inside the first before the last began, and were in the collective at once: exact for gloo and MPI, and
for NCCL if tensors wait for data. An iteration ends when a tensor comes again; most bytes are those of training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from osfmodel.entities.cluster import LIBRARIES
from osfmodel.entities.errors import DataError
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.timeline import length, union, without
from osfmodel.formats.horovod.events import Activity, Cycle, EventReader, TensorSpan
from osfmodel.formats.source_text import Text


@dataclass(frozen=True, slots=True)
class Reduced:
    """One tensor in a group; times in seconds since the timeline began.

    ``found`` is the start of the cycle in which the loop of the last worker found it, having not seen it at
    ``unseen_since`` (None where cycles are not marked), and ``first`` that of the first worker; ``ready`` is when its
    data was there, where the loop had to wait for that (on GPUs).
    """

    name: str
    bytes: int
    dtype: str
    first: float
    found: float
    unseen_since: float | None
    ready: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of one collective, from ``start`` to ``end`` with copies, ``begun`` to ``done`` without.

    Seconds since the timeline began; ``copy_in`` and ``copy_out`` are seconds spent on the fusion buffer.
    """

    tensors: tuple[Reduced, ...]
    start: float
    end: float
    begun: float
    done: float
    copy_in: float | None
    copy_out: float | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in the order in which they lay in the buffer."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class HorovodTimeline:
    """Content of a timeline: groups of each iteration, cycles if marked, library and workers.

    ``asked`` tells for each iteration whether the coordinator heard ranks, as in the first, before the response cache
    knows the tensors. ``workers`` is None where it never did. ``library`` is one of LIBRARIES.
    """

    iterations: tuple[tuple[Group, ...], ...]
    cycles: tuple[Cycle, ...]
    asked: tuple[bool, ...]
    library: str
    hierarchical: bool
    workers: int | None

    @property
    def carried(self) -> str:
        """The library in words."""
        return self.library or "library not stated"

    @property
    def training(self) -> tuple[int, ...]:
        """Indices of the iterations with the set of tensors that carries most bytes in all."""
        sets = [frozenset(name for group in groups for name in group.names) for groups in self.iterations]
        carried: Counter[frozenset[str]] = Counter()
        for names, groups in zip(sets, self.iterations, strict=True):
            carried[names] += sum(group.bytes for group in groups)
        usual = max(carried, key=lambda names: carried[names], default=None)
        return tuple(place for place, names in enumerate(sets) if names == usual)

    @property
    def warm_ups(self) -> int:
        """Number of training iterations to ignore: those before the cache knew all tensors, at least the first."""
        places = self.training
        return max(1, next((count for count, place in enumerate(places) if not self.asked[place]), 0))

    @property
    def steady(self) -> tuple[tuple[int, int], ...]:
        """Indices of consecutive iterations of training, in pairs, without warm-ups."""
        return tuple((a, b) for a, b in pairwise(self.training[self.warm_ups :]) if b == a + 1)

    @property
    def iteration_times(self) -> tuple[float, ...]:
        """Seconds from the first all-reduce of an iteration to that of the next, warm-ups left out."""
        return tuple(self.iterations[b][0].start - self.iterations[a][0].start for a, b in self.steady)

    @property
    def cycle_gap(self) -> float | None:
        """Median seconds between idle cycles: the cycle time, or the time of an empty negotiation."""
        return middle(after.start - cycle.start for cycle, after in pairwise(self.cycles) if cycle.idle)

    def negotiation(self, asked: bool = False) -> tuple[float, ...]:
        """Seconds from the start of a cycle to its first collective: the time to reach agreement.

        It holds the wait until the loops of all workers have come round, so that the least is what agreeing costs.
        ``asked``: of cycles in which the coordinator asked for ranks, else of those that the cache answered.
        """
        return tuple(one.first - one.start for one in self.cycles if one.first is not None and one.asked == asked)

    @property
    def copy_seconds_per_byte(self) -> tuple[float, float] | None:
        """Seconds per byte into and out of the fusion buffer, without warm-ups; None if nothing was fused."""
        copied = [group for group in self._measured() if group.copy_in is not None and group.copy_out is not None]
        carried = sum(group.bytes for group in copied)
        if not carried:
            return None
        return plain_sum(g.copy_in or 0 for g in copied) / carried, plain_sum(g.copy_out or 0 for g in copied) / carried

    @property
    def durations(self) -> dict[int, tuple[float, ...]]:
        """Seconds of each collective without copies, by bytes, warm-ups left out."""
        found: dict[int, list[float]] = {}
        for group in self._measured():
            found.setdefault(group.bytes, []).append(group.done - group.begun)
        return {size: tuple(times) for size, times in sorted(found.items())}

    @property
    def lateness(self) -> float:
        """Seconds for which the last worker was surely later with its gradients than the first, by medians.

        Time in which the loop ran collectives does not count: it could not see then who was ready.
        """
        late = []
        for _, place in self.steady:
            busy = union((group.start, group.end) for group in self.iterations[place])
            tensors = [tensor for group in self.iterations[place] for tensor in group.tensors]
            waits = [(one.first, one.found if one.unseen_since is None else one.unseen_since) for one in tensors]
            late.append(median(length(without([wait], busy)) if wait[1] > wait[0] else 0.0 for wait in waits))
        return middle(late) or 0.0

    def _measured(self) -> list[Group]:
        return [group for place in self.training[self.warm_ups :] for group in self.iterations[place]]


def timeline(text: Text) -> HorovodTimeline:
    """Read a timeline. Raises DataError with the number of a wrong event, or if there are no all-reduces."""
    recorder = EventReader(text)
    recorder.record()
    failed = sum(bool(span.end) and span.size is None for span in recorder.spans)
    if failed:
        text.tell(f"{failed} all-reduces ended without dtype and shape, as those that fail do, and are left out")
    groups = [group for group in _grouped(recorder.spans) if all(span.size is not None for span in group)]
    if not groups:
        raise DataError("holds no all-reduce that ended: record some steps of training with HOROVOD_TIMELINE=FILE")
    iterations = _iterations(groups)
    spans = [span for group in groups for span in group]
    steps = [entry.name for span in spans for entry in span.collective]
    ranks = [rank for span in spans for rank in span.asked.ranks]
    return HorovodTimeline(
        tuple(tuple(map(_group, groups)) for groups in iterations),
        tuple(recorder.cycles),
        tuple(any(span.asked.ranks for group in groups for span in group) for groups in iterations),
        next((name for name in LIBRARIES if name and any(step.startswith(f"{name.upper()}_") for step in steps)), ""),
        any(step.endswith("_REDUCESCATTER") for step in steps),
        max(ranks) + 1 if ranks else None,
    )


def _grouped(spans: Sequence[TensorSpan]) -> list[list[TensorSpan]]:
    groups: list[list[TensorSpan]] = []
    for span in spans:
        if groups and _together(groups[-1][0], groups[-1][-1], span):
            groups[-1].append(span)
        else:
            groups.append([span])
    return groups


def _together(first: TensorSpan, last: TensorSpan, span: TensorSpan) -> bool:
    """Whether ``span`` belongs to the group from ``first`` to ``last``, which begins before it."""
    if (span.dtype and first.dtype and span.dtype != first.dtype) or span.first > first.inside:
        return False
    fused = all(one.activity("MEMCPY_IN_FUSION_BUFFER") and one.collective for one in (first, span))
    return bool(fused) and last.collective[0].first < span.collective[0].first < first.collective[0].last


def _iterations(groups: Iterable[list[TensorSpan]]) -> list[list[list[TensorSpan]]]:
    """Groups by iteration; a new one starts when a tensor comes again."""
    iterations: list[list[list[TensorSpan]]] = []
    seen: set[str] = set()
    for group in groups:
        names = {span.name for span in group}
        if not iterations or names & seen:
            iterations.append([])
            seen = set()
        iterations[-1].append(group)
        seen |= names
    return iterations


def _group(spans: Sequence[TensorSpan]) -> Group:
    steps = [entry for span in spans for entry in span.collective if entry.last]
    start, end = spans[0].start, max(span.end for span in spans)
    return Group(
        tuple(map(_reduced, spans)),
        start,
        end,
        min((entry.start for entry in steps), default=start),
        max((entry.end for entry in steps), default=end),
        _length([span.activity("MEMCPY_IN_FUSION_BUFFER") for span in spans]),
        _length([span.activity("MEMCPY_OUT_FUSION_BUFFER") for span in spans]),
    )


def _reduced(span: TensorSpan) -> Reduced:
    waited = span.activity("WAIT_FOR_DATA")
    ready = waited.end if waited and waited.last else None
    return Reduced(span.name, span.size or 0, span.dtype, span.asked.found, *span.asked.by_all, ready)


def _length(activities: Sequence[Activity | None]) -> float | None:
    found = [entry for entry in activities if entry and entry.last]
    return max(entry.end for entry in found) - min(entry.start for entry in found) if found else None


def middle(times: Iterable[float]) -> float | None:
    """The median; None of nothing."""
    found = list(times)
    return median(found) if found else None
