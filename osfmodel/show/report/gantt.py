"""One iteration as a Gantt chart: lanes of bars, predicted from a timeline or measured in a trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from osfmodel.entities.display import show_predicted_time, show_time
from osfmodel.entities.errors import DataError, require_name
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Interval, Span, common, length, outside, union
from osfmodel.entities.trace import Collective, Step
from osfmodel.planning.results import Prediction

COMPUTE = "compute"
"""The lane of the compute stream."""
KINDS = {
    "forward": "forward",
    "backward": "backward",
    "compute": "computation",
    "update": "update",
    "copy": "copying",
    "spread": "spreading sparse entries",
    "input": "waiting for input",
    "other": "other work",
}
"""Kinds of bars other than collectives, in words. Every form of a picture draws each of them in its own way."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An interval in which a lane is busy. Times in seconds since the iteration began.

    kind:    that of an operation, ``compute`` where a trace does not tell forward from backward; or which collective
    sends:   whether it is a collective
    layers:  the layers concerned, where they are known
    bytes:   of the gradients that a collective carries, where they are known
    bucket:  number in the plan, from 0 on, of the bucket that a collective carries or that backward makes ready;
             of a measured collective its place in the step; None for what belongs to no bucket
    ready:   when the last gradient of a collective was there; of a measured one when it was submitted
    exposed: the parts of a collective during which nothing computed
    busy:    seconds of it in which something goes on, where several with gaps are drawn as one; None for all
    parts:   how many are drawn as this one
    """

    kind: str
    start: float
    end: float
    sends: bool = False
    layers: tuple[str, ...] = ()
    bytes: int | None = None
    bucket: int | None = None
    ready: float | None = None
    exposed: tuple[Interval, ...] = ()
    busy: float | None = None
    parts: int = 1

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise DataError(f"a bar ({self.kind}) ends before it begins")

    @property
    def look(self) -> str:
        """The entry of KINDS for a bar that is not a collective."""
        return self.kind if self.kind in KINDS else "other"

    @property
    def words(self) -> str:
        """The kind in words."""
        return KINDS[self.kind] if self.kind in KINDS and not self.sends else self.kind.replace("_", "-")

    @property
    def duration(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start

    @property
    def busy_time(self) -> float:
        """Seconds in which the lane is busy."""
        return self.duration if self.busy is None else self.busy

    @property
    def coverage(self) -> float:
        """The fraction of its duration in which the lane is busy."""
        return 1.0 if self.busy is None or not self.duration else min(1.0, self.busy / self.duration)

    @property
    def exposed_time(self) -> float:
        """Seconds during which nothing computed."""
        return length(self.exposed)

    @property
    def rate(self) -> float | None:
        """Bytes per second; None if bytes or duration are unknown or zero."""
        return self.bytes / self.busy_time if self.bytes and self.busy_time else None


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream and its bars in order: ``compute``, ``channel 0`` ..., in a trace also ``copies`` and ``input``."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Gantt:
    """An iteration that takes ``end`` seconds; ``alone``: that of a single GPU, if predicted."""

    name: str
    lanes: tuple[Lane, ...]
    end: float
    alone: float | None = None
    measured: bool = False

    def __post_init__(self) -> None:
        require_name(self.name, "the name of a chart")

    @property
    def collectives(self) -> tuple[Bar, ...]:
        """The bars of collectives in the order in which they start."""
        return _in_order(bar for lane in self.lanes for bar in lane.bars if bar.sends)

    @property
    def computing(self) -> float:
        """The fraction of the iteration during which the compute stream is busy."""
        bars = [bar for lane in self.lanes if lane.name == COMPUTE for bar in lane.bars]
        return length((bar.start, bar.end) for bar in bars) / self.end if self.end else 0.0

    @property
    def exposed_time(self) -> float:
        """Seconds during which a collective runs and nothing computes."""
        return length(part for bar in self.collectives for part in bar.exposed)

    def shown(self, seconds: float) -> str:
        """A time of the chart for people, with the digits that a measurement or a prediction deserves."""
        return show_time(seconds) if self.measured else show_predicted_time(seconds)


def kinds_of(gantts: Iterable[Gantt]) -> list[str]:
    """Kinds of bars other than collectives in any of the charts, for a common legend."""
    found = {bar.look for gantt in gantts for lane in gantt.lanes for bar in lane.bars if not bar.sends}
    return [kind for kind in KINDS if kind in found]


def predicted(prediction: Prediction) -> Gantt:
    """The predicted iteration: a bar for every span."""
    plan, timeline = prediction.plan, prediction.timeline
    compute = [span for span in timeline.spans if span.stream == COMPUTE]
    makes = _buckets_of_layers(plan)
    ready = {layer: span.end for span in compute if span.kind == "backward" for layer in span.layers}
    busy = union((span.start, span.end) for span in compute)
    channels: dict[str, list[Bar]] = {}
    for span in timeline.communication:
        channels.setdefault(span.stream, []).append(_collective(span, plan, ready, busy))
    lanes = [Lane(COMPUTE, _computed(compute, makes))]
    lanes += [Lane(name, _in_order(channels[name])) for name in sorted(channels, key=lambda name: (len(name), name))]
    return Gantt(prediction.name, tuple(lanes), timeline.iteration_time, timeline.compute_time)


def measured(step: Step, name: str) -> Gantt:
    """One step of one rank, counted from its start. Overlapping collectives get lanes of their own."""
    lanes = [Lane(COMPUTE, tuple(_kernels(step)))]
    whole = ((step.start, step.end),)
    for lane, intervals, kind in (("copies", step.copies, "copy"), ("input", step.inputs, "input")):
        # The host may wait for input before the device has come to this step.
        inside = common(intervals, whole)
        if inside:
            lanes.append(Lane(lane, tuple(Bar(kind, start - step.start, end - step.start) for start, end in inside)))
    busy = [(start - step.start, end - step.start) for start, end in step.compute]
    rows: list[list[Bar]] = []
    for number, one in enumerate(sorted(step.collectives, key=lambda one: (one.start, one.end))):
        bar = _seen(one, number, step.start, busy)
        free = next((row for row in rows if row[-1].end <= bar.start), None)
        if free is None:
            rows.append([bar])
        else:
            free.append(bar)
    lanes += [Lane(f"channel {number}", tuple(row)) for number, row in enumerate(rows)]
    last = max((bar.end for lane in lanes for bar in lane.bars), default=0.0)
    return Gantt(name, tuple(lanes), max(step.time, last), measured=True)


def _buckets_of_layers(plan: Plan) -> dict[str, int]:
    """The bucket of each layer; for a tensor in pieces the first one."""
    found: dict[str, int] = {}
    for number, bucket in enumerate(plan.buckets):
        for block in bucket.blocks:
            found.setdefault(block.layer, number)
    return found


def _collective(span: Span, plan: Plan, ready: Mapping[str, float], busy: Sequence[Interval]) -> Bar:
    there = max((ready[layer] for layer in span.layers if layer in ready), default=None)
    number = span.bucket if span.bucket >= 0 else None
    size = None if number is None else plan.buckets[number].size
    exposed = outside(span.start, span.end, busy)
    return Bar(span.kind, span.start, span.end, True, span.layers, size, number, there, exposed)


def _computed(spans: Sequence[Span], makes: Mapping[str, int]) -> tuple[Bar, ...]:
    """Bars of computation; backward belongs to the bucket that it helps to make ready, its own or a later layer's."""
    bars: list[Bar] = []
    follows: int | None = None
    for span in reversed(spans):
        bucket = makes.get(span.layers[0]) if span.layers and span.kind != "forward" else None
        if span.kind == "backward":
            bucket = follows = follows if bucket is None else bucket
        bars.append(Bar(span.kind, span.start, span.end, layers=span.layers, bucket=bucket))
    return tuple(reversed(bars))


def _kernels(step: Step) -> Iterable[Bar]:
    """Intervals of computation, under the name of the pass in which their middle lies."""
    passes = (("forward", step.forward), ("backward", step.backward), ("update", step.update))
    for start, end in step.compute:
        middle = (start + end) / 2
        kind = next((name for name, part in passes if part is not None and part[0] <= middle <= part[1]), COMPUTE)
        yield Bar(kind, start - step.start, end - step.start)


def _seen(one: Collective, number: int, origin: float, busy: Sequence[Interval]) -> Bar:
    start, end = one.start - origin, one.end - origin
    issued = None if one.issued is None else one.issued - origin
    return Bar(one.kind, start, end, True, (), one.bytes, number, issued, outside(start, end, busy))


def _in_order(bars: Iterable[Bar]) -> tuple[Bar, ...]:
    return tuple(sorted(bars, key=lambda bar: (bar.start, bar.end)))
