"""Horovod's timeline (HOROVOD_TIMELINE): which tensors it fused, when, and the time of the collectives.

Tensors form one fused group if they have one dtype, went through the fusion buffer, began one after the other
with nothing inside the first before the last began, and were in the collective at once: exact for gloo and MPI, and
for NCCL if tensors wait for data. An iteration ends when a tensor comes again; most bytes are those of training.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from osfmodel.entities.cluster import LIBRARIES, Cluster
from osfmodel.entities.display import how_many, show_time
from osfmodel.entities.effects import Effects
from osfmodel.entities.errors import DataError
from osfmodel.entities.executors import HOROVOD
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.source import Source
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.horovod.events import Activity, Cycle, EventReader, TensorSpan
from osfmodel.formats.source_text import Hints, Noun, Point, Text, cluster_of, require_workers

SIGN = re.compile(r'"(?:NEGOTIATE_[A-Z]|CYCLE_START"|start_time_since_epoch_in_micros")')
COARSE = 0.1
"""Fraction of backward for which tensors may wait unseen before a remark calls their ready times coarse."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """One tensor in a group; times in seconds since the timeline began.

    ``found`` is the start of the cycle in which the first worker's loop found it, having not seen it at
    ``unseen_since`` (None where cycles are not marked); ``ready`` is when its data was there, where the loop had to
    wait for that (on GPUs).
    """

    name: str
    bytes: int
    dtype: str
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
        return _median(after.start - cycle.start for cycle, after in pairwise(self.cycles) if cycle.idle)

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
    return Reduced(span.name, span.size or 0, span.dtype, span.asked.found, span.asked.unseen_since, ready)


def _length(activities: Sequence[Activity | None]) -> float | None:
    found = [entry for entry in activities if entry and entry.last]
    return max(entry.end for entry in found) - min(entry.start for entry in found) if found else None


def _median(times: Iterable[float]) -> float | None:
    found = list(times)
    return median(found) if found else None


def sniff(head: str) -> bool:
    """Whether it is a JSON array of trace events, some of which only Horovod writes."""
    return head.lstrip().startswith("[") and '"ph"' in head and SIGN.search(head) is not None


def read(text: Text, hints: Hints) -> list[Noun]:
    """The measurement, the workload as the loop saw it, and the cluster. Raises DataError if there is none."""
    found = timeline(text)
    workers = 1 if found.workers == 1 and not hints.workers else require_workers(found.workers, hints)
    kinds: Sequence[Callable[[HorovodTimeline, Text, Hints, int], Noun | None]] = (_measurement, _workload, _cluster)
    nouns = [noun for kind in kinds if (noun := kind(found, text, hints, workers)) is not None]
    if not nouns:
        seen = f"has {len(found.training)} iterations of the same tensors, {found.warm_ups} of them to warm up"
        raise DataError(f"{seen}: record 4 or more, of tensors that have names")
    others = len(found.iterations) - len(found.training)
    if others:
        text.tell(f"{others} of {len(found.iterations)} iterations are incomplete or of other tensors and are left out")
    return nouns


def _source(text: Text, found: HorovodTimeline, workers: int, said: str) -> Source:
    return text.source(f"Horovod, {found.carried}, {how_many(workers, 'worker')}; {said}")


def _measurement(found: HorovodTimeline, text: Text, hints: Hints, workers: int) -> Measurement | None:
    """Iteration times from the first all-reduce of one to that of the next."""
    times = tuple(time for time in found.iteration_times if time > 0)
    if not times:
        return None
    formed = Counter(" ".join(str(group.bytes) for group in found.iterations[a]) for a, _ in found.steady)
    conditions = {
        **HOROVOD.conditions,
        "library": found.library or "not stated",
        "buckets": formed.most_common(1)[0][0],
    }
    conditions["formations"] = f"{len(formed)} in {len(found.steady)} iterations"
    if found.hierarchical:
        conditions["hierarchical"] = "yes"
    if found.cycle_gap is not None:
        conditions["cycle_gap_s"] = f"{found.cycle_gap:.6f}"
    if hints.batch_size:
        conditions["batch_size"] = str(hints.batch_size)
    said = "from the first all-reduce of an iteration to that of the next; buckets as formed most often"
    source = _source(text, found, workers, said)
    return Measurement(
        hints.name, hints.name, "horovod", workers, times, found.warm_ups, tuple(conditions.items()), source
    )


def _workload(found: HorovodTimeline, text: Text, hints: Hints, workers: int) -> Workload | None:
    """A workload with each tensor ready when the loop found it, by medians; all before the first is forward."""
    if not found.steady:
        return None
    seen: dict[str, list[tuple[Reduced, float]]] = {}
    for a, b in found.steady:
        end = max(group.end for group in found.iterations[a])
        for tensor in (tensor for group in found.iterations[b] for tensor in group.tensors):
            seen.setdefault(tensor.name, []).append((tensor, end))
    layers, forward, backward = _layers(list(seen.values()))
    gaps = [_median(t.found - t.unseen_since for t, _ in rows if t.unseen_since is not None) for rows in seen.values()]
    late = max((gap for gap in gaps if gap is not None), default=None)
    unknown = "lateness unknown without HOROVOD_TIMELINE_MARK_CYCLES=1"
    said = unknown if late is None else f"up to {show_time(late)} late"
    if late is None or late > COARSE * backward:
        remedy = "for finer times record one worker with HOROVOD_CYCLE_TIME=0.1, or use osf profile"
        seen_at = f"gradients are dated when Horovod's loop saw them, {said} (backward takes {show_time(backward)})"
        text.tell(f"{seen_at}: {remedy}")
    note = f"dated when Horovod's loop saw it, {said}; all before the first gradient, update and input too, as forward"
    source = _source(text, found, workers, f"{note}, {show_time(forward)} spread by bytes")
    return Workload(hints.name, tuple(layers), hints.batch_size, 0.0, source)


def _layers(rows: Sequence[Sequence[tuple[Reduced, float]]]) -> tuple[list[Layer], float, float]:
    """Layers from input to output, and the times of forward and backward; a row is one tensor over iterations."""
    known = [(row[0][0], *_times(row)) for row in rows]
    known.sort(key=lambda entry: entry[1])
    forward, total = known[0][1], sum(tensor.bytes for tensor, _, _ in known) or 1
    ahead = any(tensor.ready is not None for tensor, _, _ in known)
    layers, before = [], forward
    for tensor, ready, found in known:
        share, enqueue = forward * tensor.bytes / total, min(found, ready) if ahead else None
        layers.append(Layer(tensor.name, share, ready - before, tensor.bytes, tensor.dtype, enqueue_time=enqueue))
        before = ready
    return layers[::-1], forward, before - forward


def _times(row: Sequence[tuple[Reduced, float]]) -> tuple[float, float]:
    """Seconds from the end of the last iteration until a tensor was ready, and until it was found."""
    ready = [max(0.0, (tensor.found if tensor.ready is None else tensor.ready) - end) for tensor, end in row]
    return median(ready), median(max(0.0, tensor.found - end) for tensor, end in row)


def _cluster(found: HorovodTimeline, text: Text, hints: Hints, workers: int) -> Cluster | None:
    """A cluster with all-reduce times by bytes; None with one worker or fewer than two sizes."""
    durations = {size: times for size, times in found.durations.items() if size}
    if workers < 2 or len(durations) < 2:
        return None
    points = [Point(workers, size, time, 0) for size, times in durations.items() for time in times]
    said = f"Horovod, {found.carried}: all-reduces of training without copies; waits for slower workers are in them"
    return replace(cluster_of(text, points, hints, said), library=found.library, effects=_effects(found))


def _effects(found: HorovodTimeline) -> Effects:
    """Effects of the loop, as far as the timeline has them; negotiation takes the least time seen."""
    hit, miss = (min(found.negotiation(kind), default=0.0) for kind in (False, True))
    copy = plain_sum(found.copy_seconds_per_byte or ())
    return Effects(fusion_copy=copy, negotiation=hit, negotiation_miss=max(miss - hit, 0.0))
