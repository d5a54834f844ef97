"""The data of a report: plans compared and tuned, measured steps, curves. gathering.py makes them."""

from __future__ import annotations

from osfmodel.entities.display import how_many, little, show_bytes, show_share, show_time
from osfmodel.entities.records import dataclass, field
from osfmodel.entities.trace import Step
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import WORTHWHILE, Comparison, Prediction, Tuning

TUNED = "tuned"
"""The name of the plan that tuning finds."""
TRACED = "as traced"
"""The name of the plan that a trace itself shows."""
BEST = "optimal"
"""The name of the best plan at each worker count, beside the one tuned for a single count."""
BELOW = 0.01
"""Fraction by which a measured step must be shorter than a lower bound to be reported, since steps vary."""


@dataclass(frozen=True, slots=True)
class ScalingLine:
    """Scaling factor and iteration time in seconds of one plan at each worker count."""

    name: str
    factors: tuple[float, ...]
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scaling factor (compute time / iteration time) by worker count; times the count it is the speed-up.

    bounds: scaling factors that no schedule can exceed under the rules of the first plan
    chosen: the worker count of the report
    """

    counts: tuple[int, ...]
    lines: tuple[ScalingLine, ...]
    bounds: tuple[float, ...]
    chosen: int


@dataclass(frozen=True, slots=True)
class SizeCurve:
    """Iteration time in seconds by one limit for all buckets, beside the framework's default.

    target:   the framework
    setting:  its name of the limit
    elements: whether ``caps`` count elements; bytes otherwise
    best:     index in ``caps`` of the fastest limit, the largest of several
    default:  iteration time with the framework's defaults
    bound:    seconds that no schedule can beat under its rules
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
        """The fastest limit, in bytes or elements."""
        return self.caps[self.best]

    @property
    def best_time(self) -> float:
        """Seconds with the fastest limit."""
        return self.times[self.best]

    @property
    def unit(self) -> tuple[str, int]:
        """The unit of limits on an axis: its name, and its size in bytes or elements."""
        return ("million elements", 10**6) if self.elements else ("MiB", MIB)

    def words(self, cap: int) -> str:
        """A limit with its unit, in words."""
        return f"{cap / 10**6:.4g} M elements" if self.elements else show_bytes(cap)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A traced step of one rank; ``longest``: seconds of the longest usual step of its trace."""

    name: str
    step: Step = field(repr=False)
    longest: float

    @property
    def time(self) -> float:
        """Seconds until the device has finished everything in the step."""
        step = self.step
        ends = (*(end for _, end in step.compute), *(one.end for one in step.collectives))
        return max(step.time, *(end - step.start for end in ends)) if ends else step.time


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report.

    workload:   as profiled; ``comparison`` has it with the what-if changes
    comparison: the default first, then the tuned plan, the traced one if known, and others
    sizes:      over the setting that limits all buckets, if the framework has one
    measured:   steps of traced jobs
    why:        the cause that limits each of these jobs, in a sentence or two, if its trace tells
    remarks:    things that could not be shown, and further caveats, each with its subject
    inputs:     the user's options, as pairs of words
    """

    workload: Workload = field(repr=False)
    tuning: Tuning = field(repr=False)
    comparison: Comparison = field(repr=False)
    scaling: Scaling = field(repr=False)
    sizes: SizeCurve | None = field(repr=False)
    measured: tuple[MeasuredStep, ...] = ()
    why: tuple[str, ...] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """Workload, cluster, changes and workers in a line."""
        return f"{self.workload.name} {self.where}"

    @property
    def where(self) -> str:
        """Cluster, changes and number of workers, in words."""
        comparison = self.comparison
        changed = f" with {comparison.what_if.words}" if comparison.what_if.words else ""
        return f"on {comparison.cluster.name}{changed}, {how_many(comparison.workers, 'worker')}"

    @property
    def default(self) -> Prediction:
        """The prediction with the framework's defaults."""
        return self.comparison.predictions[0]

    @property
    def bound(self) -> float:
        """Seconds that no schedule under the rules of the default can beat; plans under other rules may."""
        return self.default.lower_bound

    @property
    def tuned(self) -> Prediction:
        """The prediction with the tuned settings."""
        return self.comparison.predictions[1]

    @property
    def shown(self) -> int:
        """Index of the plan that is shown first and compared with measured steps: the traced one, else the default."""
        return next((place for place, one in enumerate(self.comparison.predictions) if one.name == TRACED), 0)

    @property
    def verdict(self) -> str:
        """The gain from tuning, in a sentence or two: over the buckets of the trace if known, else over the default."""
        traced = self.comparison.predictions[self.shown]
        if traced.name != TRACED:
            return self.tuning.verdict
        gain = 1 - self.tuned.iteration_time / traced.iteration_time
        if gain < WORTHWHILE:
            return f"Keep the buckets of the trace: tuning would save {little(gain)}."
        saved = f"{show_share(gain)} less time than with the buckets of the trace"
        if not self.tuning.improvement:
            return f"{saved}: by the default of {self.tuning.target}, over which tuning brings nothing."
        return f"{saved}. {self.tuning.verdict}"

    @property
    def doubts(self) -> tuple[str, ...]:
        """A sentence for each measured step that is shorter than the bound of the plan that it is compared with."""
        against = self.comparison.predictions[self.shown]
        limit = against.lower_bound * (1 - BELOW)
        # Steps differ: the one that is drawn may be fast although other usual steps are not.
        return tuple(
            f"The measured step ({seen.name}) takes {show_time(seen.time)}, less than the bound of "
            f"{against.name}, {show_time(against.lower_bound)}: the job computed or communicated faster than the "
            "workload or the cluster says, so predictions from them are too slow."
            for seen in self.measured
            if max(seen.time, seen.longest) < limit
        )

    @property
    def notes(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """All caveats, each with the plans that it concerns."""
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
        """The sources of measured runs behind the error bands."""
        bands = [one.band for one in self.comparison.predictions]
        return sorted({source for band in bands if band is not None for source in band.sources})
