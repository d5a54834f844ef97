"""Horovod's timeline (HOROVOD_TIMELINE) -> iteration times, the model and the network as Horovod's loop saw them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import median
from typing import NoReturn

from osfmodel.cost.clusters import pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.engine.horovod_loop import Loop
from osfmodel.engine.horovod_settings import PREFIX, name_of, switched
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_time
from osfmodel.entities.effects import Effects
from osfmodel.entities.errors import DataError
from osfmodel.entities.executors import HOROVOD
from osfmodel.entities.measurement import Measurement, Source
from osfmodel.entities.plan import grouped_plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.horovod.iterations import HorovodTimeline, Reduced, middle, timeline
from osfmodel.formats.source_text import Hints, Noun, Point, Text, cluster_of, columns_of, require_workers
from osfmodel.formats.traces.cautions import apart, off

SIGN = re.compile(r'"(?:NEGOTIATE_[A-Z]|CYCLE_START"|start_time_since_epoch_in_micros")')
COARSE = 0.1
"""Fraction of backward for which tensors may wait unseen before a remark calls their ready times coarse."""


def sniff_timeline(head: str) -> bool:
    """Whether it is a JSON array of trace events, some of which only Horovod writes."""
    return head.lstrip().startswith("[") and '"ph"' in head and SIGN.search(head) is not None


def read_timeline(text: Text, hints: Hints) -> list[Noun]:
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


KNOBS = ("cycle_time_ms", "tensor_fusion_threshold", "score")
"""Columns with figures; all others are switches."""
SAMPLES = 5
"""Samples of which a row's score is the median; Horovod has no setting for it."""
STEPS_PER_SAMPLE = 10
WARM_UPS = 3
"""Horovod's defaults: steps in a sample, and discarded rows of samples before the first row of the log."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One row: threshold in bytes, cycle in seconds, score in bytes per second, and the (name, on) of switches."""

    threshold: int
    cycle: float
    score: float
    switches: tuple[tuple[str, bool], ...] = ()

    @property
    def settings(self) -> str:
        """The settings as the name of a plan (``horovod:32MiB,2.5ms``), without switches that no plan can state."""
        return PREFIX + name_of(Loop(self.threshold, self.cycle, **switched(dict(self.switches))[0]))

    @property
    def plan(self) -> str:
        """The name of a plan with these settings. Raises DataError, naming it, for a switch that no plan can state."""
        _, strange = switched(dict(self.switches))
        if strange:
            raise DataError(f"{', '.join(strange)[:200]} is on, which the name of a plan cannot state")
        return self.settings


@dataclass(frozen=True, slots=True)
class Autotune:
    """The trials ``tried``, in order; ``converged`` is Horovod's final one, None if it was stopped before."""

    tried: tuple[Trial, ...]
    converged: Trial | None

    @property
    def best(self) -> Trial:
        """The first trial with the highest score."""
        return max(self.tried, key=lambda trial: trial.score)

    def steps(self, steps_per_sample: int = STEPS_PER_SAMPLE, warm_ups: int = WARM_UPS) -> int:
        """Steps of training in the log, computed from the settings of the tuner: the log has no count.

        At most one more for every row, where a row's last step is not part of the next.
        """
        return (len(self.tried) + warm_ups) * SAMPLES * steps_per_sample


def sniff_autotune(head: str) -> bool:
    """Whether the header has the knobs and the score."""
    return set(KNOBS) <= set(columns_of(head))


def autotune(text: Text) -> Autotune:
    """All rows of the log. Raises DataError if there are none, or for a wrong row."""
    rows = [_trial(text, number, row) for number, row in text.rows()]
    if not rows:
        raise DataError("has a header but no rows: Horovod writes the first after some 200 steps")
    ended = len(rows) > 1 and rows[-1] in rows[:-1] and rows[-1].score == max(row.score for row in rows)
    return Autotune(tuple(rows[:-1] if ended else rows), rows[-1] if ended else None)


def _trial(text: Text, number: int, row: dict[str, str]) -> Trial:
    cycle, threshold, score = (text.number(number, row[text.column(number, row, (name,))]) for name in KNOBS)
    if threshold > 2**40:
        raise text.fault(number, row["tensor_fusion_threshold"], "is too large for a threshold in MiB")
    switches = tuple((name, value.strip() == "1") for name, value in row.items() if name not in KNOBS)
    seconds = float(Decimal(repr(cycle)).scaleb(-3))  # as it is written, to the last digit
    return Trial(int(threshold * MIB), seconds, score * 1e6, switches)


def read_autotune(text: Text, hints: Hints) -> NoReturn:
    """Horovod's autotune log (HOROVOD_AUTOTUNE_LOG): the settings that its tuner tried, and its final ones.

    A row holds switches, the cycle time in ms, the fusion threshold in MiB (horovod/common/parameter_manager.cc), and
    the score, bytes that were reduced per microsecond: the median of five samples of HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE
    steps each. Once it has converged it repeats the best as its last row. Figures have six digits.

    It has no times of tensors or collectives, so it becomes no noun: ``osf import`` prints its result.

    Raise DataError with the tuner's result, since there is nothing to import.
    """
    found = autotune(text)
    kept = found.converged or found.best
    on = [name for name, value in kept.switches if value]
    kind = "converged to" if found.converged else "was stopped before it converged; the best so far is"
    spent = f"{len(found.tried)} settings tried, {found.steps()} steps if its other settings are Horovod's defaults"
    raise DataError(
        f"is Horovod's autotune log, which {kind} {kept.settings}{' with ' if on else ''}{', '.join(on)[:200]} "
        f"({kept.score / 1e6:.4g} MB/s; {spent}): it holds no times of tensors, so there is nothing to import; "
        "for those give a timeline (HOROVOD_TIMELINE=FILE)"
    )
