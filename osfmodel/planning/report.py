"""The data of a report: plans compared and tuned, measured steps, curves. Functions that make them: gathering."""

from __future__ import annotations

from dataclasses import dataclass, field

from osfmodel.entities.trace import Step
from osfmodel.entities.units import MIB, how_many, show_bytes, show_time
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import WORTHWHILE, Comparison, Prediction, Tuning

TUNED = "tuned"
"""The name of the plan that tuning finds."""
TRACED = "as traced"
"""The name of the plan that a trace itself shows."""
BEST = "optimal"
"""What is best at each worker count, beside what is tuned for one."""
BELOW = 0.01
"""By what part a measured step must be shorter than a lower bound to be said to be: steps are not all alike."""


@dataclass(frozen=True, slots=True)
class ScalingLine:
    """The scaling factor of one plan at each worker count, and its iteration time in seconds."""

    name: str
    factors: tuple[float, ...]
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Workers against scaling factor (compute time / iteration time); times that is the speed-up.

    bounds: what no schedule can pass under the rules of the first plan, as scaling factors
    chosen: the worker count that the report is about
    """

    counts: tuple[int, ...]
    lines: tuple[ScalingLine, ...]
    bounds: tuple[float, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """One limit for all messages against iteration time (seconds), and what the framework does without being asked.

    target:   the framework
    setting:  its name of the limit
    elements: whether ``caps`` count elements; bytes otherwise
    best:     place in ``caps`` of the limit that is fastest, the largest where several are
    default:  iteration time as the framework is by default
    bound:    what no schedule can beat under its rules
    """

    target: str
    setting: str
    elements: bool
    caps: tuple[int, ...]
    times: tuple[float, ...]
    buckets: tuple[int, ...]
    best: int
    default: float
    bound: float

    @property
    def best_cap(self) -> int:
        """Bytes, or elements."""
        return self.caps[self.best]

    @property
    def best_time(self) -> float:
        """Seconds."""
        return self.times[self.best]

    @property
    def unit(self) -> tuple[str, int]:
        """What limits are drawn in: its name, and how much it is."""
        return ("million elements", 10**6) if self.elements else ("MiB", MIB)

    def words(self, cap: int) -> str:
        """A limit with its unit."""
        return f"{cap / 10**6:.4g} M elements" if self.elements else show_bytes(cap)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of one rank as a trace has it; ``longest``: seconds of the longest of the usual steps of its trace."""

    name: str
    step: Step = field(repr=False)
    longest: float

    @property
    def time(self) -> float:
        """Seconds until the last of what the device did in it."""
        step = self.step
        ends = (*(end for _, end in step.compute), *(one.end for one in step.collectives))
        return max(step.time, *(end - step.start for end in ends)) if ends else step.time


@dataclass(frozen=True, slots=True)
class Report:
    """All that a report shows.

    workload:   as profiled; that of ``comparison`` is as it was changed
    comparison: the default first, then what tuning found, what was traced if that is known, and others
    sweep:      over the setting that limits all messages, where the framework has one
    measured:   steps of traced jobs
    why:        what limits each of these jobs, in a sentence or two, where its trace tells
    remarks:    what could not be shown, and what else there is to be careful about, each with what it is about
    inputs:     what was asked for, as pairs of words
    """

    workload: Workload = field(repr=False)
    tuning: Tuning = field(repr=False)
    comparison: Comparison = field(repr=False)
    scaling: Scaling = field(repr=False)
    sweep: Sweep | None = field(repr=False)
    measured: tuple[MeasuredStep, ...] = ()
    why: tuple[str, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """What is shown, in a line."""
        return f"{self.workload.name} {self.where}"

    @property
    def where(self) -> str:
        """On what, with which changes, and on how many workers."""
        comparison = self.comparison
        changed = f" with {comparison.what_if.words}" if comparison.what_if.words else ""
        return f"on {comparison.cluster.name}{changed}, {how_many(comparison.workers, 'worker')}"

    @property
    def default(self) -> Prediction:
        """What the framework does without being asked."""
        return self.comparison.predictions[0]

    @property
    def bound(self) -> float:
        """Seconds that no schedule under the rules of the default can beat; plans under other rules may."""
        return self.default.lower_bound

    @property
    def tuned(self) -> Prediction:
        """What it does as tuned."""
        return self.comparison.predictions[1]

    @property
    def shown(self) -> int:
        """The place of what is shown first and measured steps are held against: as traced, where there is that."""
        return next((place for place, one in enumerate(self.comparison.predictions) if one.name == TRACED), 0)

    @property
    def verdict(self) -> str:
        """What tuning brings, in a sentence or two: over the buckets of the trace if known, else over the default."""
        traced = self.comparison.predictions[self.shown]
        if traced.name != TRACED:
            return self.tuning.verdict
        gain = 1 - self.tuned.iteration_time / traced.iteration_time
        if gain < WORTHWHILE:
            return f"No improvement worth having: {max(gain, 0):.2%} over the buckets of the trace. Keep them."
        saved = f"{gain:.1%} less time than with the buckets of the trace"
        if not self.tuning.improvement:
            return f"{saved}: by the default of {self.tuning.target}, over which tuning brings nothing."
        return f"{saved}. {self.tuning.verdict}"

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence for each measured step that is faster than any can be by the prediction it is held against."""
        against = self.comparison.predictions[self.shown]
        limit = against.lower_bound * (1 - BELOW)
        # Where steps differ, the one that is drawn may be fast although others, as usual as it, are not.
        return tuple(
            f"The measured step ({seen.name}) takes {show_time(seen.time)}, less than the lower bound of "
            f"{against.name}, {show_time(against.lower_bound)}: the job computed or communicated faster than the "
            "workload or the cluster says, so predictions from them are too slow."
            for seen in self.measured
            if max(seen.time, seen.longest) < limit
        )

    @property
    def notes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """All that there is to be careful about, each with the plans that it is about."""
        found: dict[str, list[str]] = {}
        for prediction in self.comparison.predictions:
            for note in prediction.notes:
                found.setdefault(note, []).append(prediction.name)
        for note in self.tuning.notes:
            found.setdefault(note, [TUNED])
        for remark, about in self.remarks:
            found.setdefault(remark, []).append(about)
        return tuple((note, tuple(names)) for note, names in found.items())

    @property
    def sources(self) -> list[str]:
        """The sources of the ledger that the error bands are from."""
        bands = [one.band for one in self.comparison.predictions]
        return sorted({source for band in bands if band is not None for source in band.sources})
