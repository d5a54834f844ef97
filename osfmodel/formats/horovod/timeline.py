"""Horovod's timeline (HOROVOD_TIMELINE) -> iteration times, the model and the network as Horovod's loop saw them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from osfmodel.cost.clusters import pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_time
from osfmodel.entities.effects import Effects
from osfmodel.entities.errors import DataError
from osfmodel.entities.executors import HOROVOD
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.plan import grouped_plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.source import Source
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.horovod.iterations import HorovodTimeline, Reduced, middle, timeline
from osfmodel.formats.source_text import Hints, Noun, Point, Text, cluster_of, require_workers
from osfmodel.formats.together import apart, off

SIGN = re.compile(r'"(?:NEGOTIATE_[A-Z]|CYCLE_START"|start_time_since_epoch_in_micros")')
COARSE = 0.1
"""Fraction of backward for which tensors may wait unseen before a remark calls their ready times coarse."""


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
    for said in _doubts(found, nouns, workers):
        text.tell(said)
    return nouns


def _doubts(found: HorovodTimeline, nouns: Sequence[Noun], workers: int) -> list[str]:
    """A sentence on each reason to take predictions from the timeline with care."""
    kinds = {type(noun): noun for noun in nouns}
    run, workload, cluster = (kinds.get(kind) for kind in (Measurement, Workload, Cluster))
    if not isinstance(run, Measurement) or not isinstance(workload, Workload):
        return []
    said = [apart(found.lateness, run.iteration_time)]
    groups = _usual_groups(found, workload)
    if isinstance(cluster, Cluster) and groups:
        plan = grouped_plan(workload, groups)
        again = predict_timeline(workload, plan, pricing_of(cluster, workers)).iteration_time
        said.append(off(again, run.iteration_time))
    return [sentence for sentence in said if sentence]


def _usual_groups(found: HorovodTimeline, workload: Workload) -> list[list[int]]:
    """The groups of most iterations, as positions in ready order; none if the workload has not all of their tensors."""
    position = {name: place for place, name in enumerate(workload.gradients.names)}
    formed = Counter(tuple(group.names for group in found.iterations[place]) for _, place in found.steady)
    (usual, _) = formed.most_common(1)[0]
    if any(name not in position for names in usual for name in names):
        return []
    return [sorted(position[name] for name in names) for names in usual]


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
    """A workload with each tensor ready when the last rank's loop found it, by medians; before the first is forward."""
    if not found.steady:
        return None
    seen: dict[str, list[tuple[Reduced, float]]] = {}
    for a, b in found.steady:
        end = max(group.end for group in found.iterations[a])
        for tensor in (tensor for group in found.iterations[b] for tensor in group.tensors):
            seen.setdefault(tensor.name, []).append((tensor, end))
    layers, forward, backward = _layers(list(seen.values()))
    gaps = [middle(t.found - t.unseen_since for t, _ in rows if t.unseen_since is not None) for rows in seen.values()]
    late = max((gap for gap in gaps if gap is not None), default=None)
    unknown = "lateness unknown without HOROVOD_TIMELINE_MARK_CYCLES=1"
    said = unknown if late is None else f"up to {show_time(late)} late"
    if late is None or late > COARSE * backward:
        remedy = "for finer times record one worker with HOROVOD_CYCLE_TIME=0.1, or use osf profile"
        seen_at = (
            f"gradients are dated when the last rank's loop saw them, {said} (backward takes {show_time(backward)})"
        )
        text.tell(f"{seen_at}: {remedy}")
    note = f"dated when the last rank's loop saw it, {said}; all before the first gradient, update and input too,"
    source = _source(text, found, workers, f"{note} as forward, {show_time(forward)} spread by bytes")
    return Workload(hints.name, tuple(layers), hints.batch_size, 0.0, source, profiled_workers=workers)


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
