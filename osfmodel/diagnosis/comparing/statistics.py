"""Compare repeated step times of two jobs: the relative change, its interval, and a verdict that knows the noise.

Two kinds of noise are told apart. Steps of one run vary, often several in a row: the exact bootstrap of the median,
widened by blocks of steps, has that. And one start of a job differs from the next, which no number of steps of one run
shows. Runs that were repeated show it. For a single run it is assumed, in proportion to how far the run's median lies
above its fastest steps, which is where a disturbed run gives itself away (:data:`OF_SPREAD`).

Compared are the fast, the quarter and the middle step of the runs (:data:`LEVELS`). A slower job is slower in all of
them; steps that something else on the machine disturbed are not, so the interval spans the three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any

from osfmodel.entities.display import brief, show_share
from osfmodel.entities.errors import DataError, UsageError, require_time
from osfmodel.entities.rounding import plain_sum

if TYPE_CHECKING:
    import numpy as np

    Logs = np.ndarray[Any, np.dtype[np.float64]]

SLOWER, FASTER, SAME, UNSURE = "slower", "faster", "no-difference", "cannot-tell"
"""The verdicts."""
TOLERANCE = 0.02
"""Relative change that does not matter, unless the caller says another."""
FALSE_ALARM = 0.01
"""Probability of a change where there is none."""
FALSE_CALM = 0.1
"""Twice the probability of no difference where there is one as large as the tolerance: two one-sided tests of 5 %."""
LEVELS = (0.1, 0.25, 0.5)
"""Quantiles of the step times that are compared; the last is the median."""
OF_START = 0.003
"""Standard deviation, relative, of a run's median from one start of a job to the next, on an undisturbed machine."""
OF_SPREAD = 0.4
"""The same as a multiple of the run's spread: how far its median lies above its 5 % quantile.

Both by the repeated runs of profiles/measurements/emulated-ddp and emulated-horovod, so that a pair of runs of one
set-up differs by more than its interval in 1 of 100; benchmarks/compare_runs.py has the rates of the other sets.
"""
OF_BENCH = 0.01
"""Standard deviation, relative, from one benchmark of a network to the next: an assumption."""
DISTURBED = 0.05
"""Spread at which that deviation is twice in proportion: a disturbed run may be disturbed all over.

Repeated runs would show that, so this counts less the more there are.
"""
DOUBT = 4
"""Degrees of freedom of the assumed deviation between starts: it counts as much as 5 repeated runs."""
FASTEST = 0.05
"""Quantile that stands for the fastest steps."""
WIDEST = 5.0
"""Largest half width of an interval, in logarithms: nothing more is known of a time than a factor of 150."""
ONE_SPREAD = 0.02
"""Spread that is assumed where only a single time is known."""
FEW = 1
"""Number of steps of which the spread would be taken to be twice what it looks."""
SHOWN = 10.0
"""Largest relative change that is shown as a number."""
WARM = 1.5
"""Multiple of the median of the others from which a first step counts as warm-up."""
SHORTEST = 1e-15
"""Seconds below which there is no step."""
BLOCKS_FROM = 8
"""Number of steps from which blocks of them tell whether they vary several in a row."""


@dataclass(frozen=True, slots=True)
class StepSeries:
    """The step times of one run, in the order in which they were measured.

    times:     seconds, all above zero
    deviation: standard deviation in seconds, if it was published beside a single mean
    """

    times: tuple[float, ...]
    deviation: float | None = None

    def __post_init__(self) -> None:
        if not self.times:
            raise DataError("a run without steps cannot be compared")
        for time in self.times:
            require_time(time, "a step time")
            if not SHORTEST < time < 1 / SHORTEST:
                raise DataError(f"a step took {time:g} s, as none does: check the unit")

    def __repr__(self) -> str:
        return brief(self, f"{len(self.times)} steps, median {self.median:.4g} s")

    @property
    def median(self) -> float:
        """Median of the settled steps, in seconds."""
        return median(self.settled)

    @property
    def settled(self) -> tuple[float, ...]:
        """The steps without slow ones at the beginning: at most a fifth, and one of few."""
        start, most = 0, max(1, len(self.times) // 5) if len(self.times) >= 3 else 0
        while start < most and self.times[start] > WARM * median(self.times[start + 1 :]):
            start += 1
        return self.times[start:]


@dataclass(frozen=True, slots=True)
class StepChange:
    """The change of a time from a baseline to a candidate.

    baseline, candidate: seconds, the median of the medians of the runs
    low, median, high:   relative change, and its interval; 0.05 is 5 % slower
    noise:               smallest relative change that these steps could have shown; 0 for predictions
    verdict:             SLOWER, FASTER, SAME or UNSURE
    runs, steps:         numbers of both sides
    tails:               relative change of the mean of all steps, slow ones included
    """

    baseline: float
    candidate: float
    low: float
    median: float
    high: float
    noise: float
    verdict: str
    runs: tuple[int, int] = (1, 1)
    steps: tuple[int, int] = (1, 1)
    tails: float = 0.0

    def __repr__(self) -> str:
        return brief(self, f"{self.verdict}: {show_share(self.median, '+')} ({self.interval})")

    @property
    def interval(self) -> str:
        """The interval in words; "" for a change without noise."""
        if self.high <= self.low:
            return ""
        high = f"more than {show_share(SHOWN, '+')}" if self.high > SHOWN else show_share(self.high, "+")
        return f"{show_share(self.low, '+')} to {high}"

    def beyond(self, tolerance: float) -> bool:
        """Whether it is slower, by more than ``tolerance`` as far as is known."""
        return self.verdict == SLOWER and self.median > tolerance


def require_tolerance(tolerance: float) -> None:
    """Raise UsageError unless ``tolerance`` is a fraction from 0 to below 1."""
    if not 0 <= tolerance < 1:
        raise UsageError(f"a tolerance of {tolerance:g}: give a fraction from 0 to below 1, such as 0.02 or 2%")


def step_change(
    baseline: Sequence[StepSeries],
    candidate: Sequence[StepSeries],
    tolerance: float = TOLERANCE,
    comparisons: int = 1,
) -> StepChange:
    """The change of the step time between the runs of two jobs, one run or more each.

    SLOWER and FASTER: the 99 % interval is beyond zero. SAME: the 90 % interval lies within ``tolerance`` on both
    sides. UNSURE: neither. ``comparisons``: how many are made at once, among which false alarms are shared out.

    The variance of the difference is that of both sides. On each it is (v + b) / runs. b is the bootstrap variance of
    the median; v the variance between starts, which is assumed (OF_START, OF_SPREAD) with DOUBT degrees of freedom,
    and pooled with what the repeated runs of both sides show, as with a scaled inverse chi-squared prior. The interval
    is Student's with all degrees of freedom. Deterministic. Raises DataError without runs.
    """
    from scipy.stats import t

    if not baseline or not candidate:
        raise DataError("runs are needed on both sides of a comparison")
    repeated = len(baseline) + len(candidate) - 2
    guard = 1 / (DISTURBED * (1 + repeated / DOUBT))
    widest = max(spread_of(run) for run in (*baseline, *candidate))
    sides = [_Side.of(runs, widest, guard) for runs in (baseline, candidate)]
    apart = plain_sum(side.apart for side in sides)
    freedom = DOUBT + repeated
    variance = plain_sum((DOUBT * side.assumed + apart) / freedom / len(side.logs) for side in sides)
    shifts = [second - first for first, second in zip(sides[0].levels, sides[1].levels, strict=True)]
    deviation = math.sqrt(variance)

    def around(doubt: float) -> tuple[float, float]:
        wide = min(WIDEST, float(t.ppf(1 - doubt / 2, freedom)) * deviation)
        return math.expm1(min(shifts) - wide), math.expm1(max(shifts) + wide)

    low, high = around(FALSE_ALARM / comparisons)
    verdict = _verdict((low, high), around(FALSE_CALM), tolerance)
    means = [fmean(math.log(fmean(run.settled)) for run in runs) for runs in (baseline, candidate)]
    counts = [sum(len(run.settled) for run in runs) for runs in (baseline, candidate)]
    before, after = (math.exp(side.levels[-1]) for side in sides)
    return StepChange(
        before, after, low, math.expm1(shifts[-1]), high, _half((low, high)), verdict,
        (len(baseline), len(candidate)), (counts[0], counts[1]), math.expm1(means[1] - means[0]),
    )  # fmt: skip


def _half(interval: tuple[float, float]) -> float:
    """Half of an interval of relative changes: the smallest change that would be beyond zero."""
    return math.sqrt((1 + interval[1]) / max(1 + interval[0], SHORTEST)) - 1


def _verdict(sure: tuple[float, float], calm: tuple[float, float], tolerance: float) -> str:
    if sure[0] > 0:
        return SLOWER
    if sure[1] < 0:
        return FASTER
    return SAME if -tolerance <= calm[0] and calm[1] <= tolerance else UNSURE


def exact_change(baseline: float, candidate: float) -> StepChange:
    """The change of a time without noise, as one of a prediction. Raises DataError for a time of zero."""
    if not baseline > 0 or not candidate > 0:
        raise DataError("a time of zero cannot be compared")
    change = candidate / baseline - 1
    verdict = SAME if abs(change) < EXACT else SLOWER if change > 0 else FASTER
    return StepChange(baseline, candidate, change, change, change, 0.0, verdict, tails=change)


EXACT = 1e-6
"""Relative change of predictions below which they are the same but for rounding."""


def paired_change(
    baseline: Sequence[float],
    candidate: Sequence[float],
    tolerance: float = TOLERANCE,
    comparisons: int = 1,
    exact: bool = False,
) -> StepChange:
    """The change of times that come in pairs, such as collectives of the same sizes.

    Each pair has its change. ``exact`` prices have no noise: the interval is the range of the changes. Measured ones
    have it around the median, with the deviation between two benchmarks (OF_BENCH, and OF_SPREAD of how far the pairs
    disagree) and the error of the median. Raises DataError without pairs.
    """
    if not baseline or len(baseline) != len(candidate) or not min(*baseline, *candidate) > 0:
        raise DataError("pairs of times above zero are needed")
    changes = [math.log(second / first) for first, second in zip(baseline, candidate, strict=True)]
    middle = median(changes)
    if exact:
        sure = calm = (math.expm1(min(changes)), math.expm1(max(changes)))
    else:
        sure, calm = (_around(changes, doubt) for doubt in (FALSE_ALARM / comparisons, FALSE_CALM))
    noise = 0.0 if exact else _half(sure)
    verdict = SAME if exact and max(map(abs, sure)) < EXACT else _verdict(sure, calm, tolerance)
    return StepChange(
        median(baseline), median(candidate), sure[0], math.expm1(middle), sure[1], noise, verdict,
        steps=(len(baseline), len(candidate)), tails=math.expm1(fmean(changes)),
    )  # fmt: skip


def _around(changes: Sequence[float], doubt: float) -> tuple[float, float]:
    """The interval of the median of logarithmic changes that is wrong with a probability of ``doubt``."""
    from scipy.stats import t

    spread = ONE_SPREAD
    if len(changes) > 2:
        first, _, last = quantiles(changes, n=4, method="inclusive")
        spread = (last - first) / NORMAL_QUARTILES
    variance = 2 * (OF_BENCH**2 + (OF_SPREAD * spread) ** 2) + (SE_OF_MEDIAN * spread) ** 2 / len(changes)
    middle, wide = median(changes), min(WIDEST, float(t.ppf(1 - doubt / 2, DOUBT)) * math.sqrt(variance))
    return math.expm1(middle - wide), math.expm1(middle + wide)


NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
SE_OF_MEDIAN = 1.2533
"""Standard error of the median of normal numbers, over their deviation and the root of their number."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison: logarithms of the step times of each run.

    levels:  mean over the runs of the logarithm of each of LEVELS
    assumed: variance of a run's level without repeated runs
    apart:   sum of squares of the medians of the runs about their mean
    """

    logs: tuple[Logs, ...]
    levels: tuple[float, ...]
    assumed: float
    apart: float

    @classmethod
    def of(cls, runs: Sequence[StepSeries], widest: float, guard: float) -> _Side:
        """The side of these runs.

        ``widest``: largest spread of all runs of both sides; ``guard``: part by which the deviation grows for each
        unit of spread.
        """
        import numpy as np

        logs = tuple(np.log(np.array(run.settled)) for run in runs)
        levels = np.array([np.quantile(one, LEVELS) for one in logs])
        medians = levels[:, -1]
        assumed = fmean(_assumed(run, one, widest, guard) for run, one in zip(runs, logs, strict=True))
        return cls(
            logs, tuple(map(float, levels.mean(axis=0))), assumed, float(((medians - medians.mean()) ** 2).sum())
        )


def _assumed(run: StepSeries, logs: Logs, widest: float, guard: float) -> float:
    """Variance of a run's median, relative: from start to start, and of its steps.

    A few steps lie close together by chance: they are taken to spread as the widest run does.
    """
    spread = spread_of(run) if len(logs) == 1 or len(logs) >= BLOCKS_FROM else widest
    spread *= 1.0 if len(logs) == 1 else 1 + FEW / len(logs)
    return OF_START**2 + (OF_SPREAD * spread * (1 + guard * spread)) ** 2 + variance_of_median(logs)


def spread_of(run: StepSeries) -> float:
    """Relative distance of a run's median from its fastest steps; with few steps also from its slowest, if more."""
    import numpy as np

    if run.deviation is not None:
        return NORMAL_FASTEST * run.deviation / run.median
    if len(run.settled) == 1:
        return ONE_SPREAD
    low, middle, most = np.quantile(np.log(np.array(run.settled)), (FASTEST, 0.5, 1.0))
    few = len(run.settled) < BLOCKS_FROM
    return float(max(middle - low, most - middle) if few else middle - low)


NORMAL_FASTEST = 1.645
"""Distance of the 5 % quantile of a normal distribution from its median, in standard deviations."""


def variance_of_median(logs: Logs) -> float:
    """Variance of the median by the exact bootstrap of Maritz and Jarrett (1978), times that of steps in a row.

    Their estimate weighs the ordered steps by a beta distribution: the shares in which each is the median.

    The median of a series varies as its steps above and below the median do: the variance of the mean of blocks of
    such signs, over the variance without any order, is how much more it varies than that of independent steps.
    """
    import numpy as np
    from scipy.special import betainc

    count = len(logs)
    shares = np.diff(betainc((count + 1) / 2, (count + 1) / 2, np.arange(count + 1) / count))
    ordered = np.sort(logs)
    variance = float(shares @ (ordered - shares @ ordered) ** 2)
    block, more = round(math.sqrt(count)), 1.0
    above = np.where(logs > np.median(logs), 1.0, 0.0)
    if count >= BLOCKS_FROM and above.var():
        means = np.lib.stride_tricks.sliding_window_view(above, block).mean(axis=1)
        more = max(1.0, block * float(means.var() / above.var()))
    return variance * more
