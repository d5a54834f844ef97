"""A session of several ranks in which rank 0 decides, keeps files, and tells the others.

It ends in the choice of the measured plan to recommend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, TypeVar

from osfmodel.entities.errors import OsfError, StoppedError
from osfmodel.planning.results import WORTHWHILE
from osfmodel.runtime.job import Place, Voice, Watchdog
from osfmodel.runtime.training.factories import is_factory
from osfmodel.solve.solution import Limits


@dataclass(frozen=True, slots=True)
class Choice:
    """The default, DDP's tuned plan, and the default again, in turn: seconds per iteration of each repeat.

    ``deviation`` says how the buckets that DDP formed differ from the tuned plan; "" if they do not.
    ``executed`` are the turns of the executor's plan, between the last two, if there is one.
    """

    default: Sequence[float]
    tuned: Sequence[float]
    again: Sequence[float]
    deviation: str = ""
    executed: Sequence[float] = ()

    @property
    def default_time(self) -> float:
        """Median over all turns of the default."""
        return median([*self.default, *self.again])

    @property
    def tuned_time(self) -> float:
        """Median over the turns of the tuned plan."""
        return median(self.tuned)

    @property
    def gain(self) -> float:
        """Fraction of the default's time that the tuned plan saved; below 0 if it was slower."""
        return 1 - self.tuned_time / self.default_time

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """The 90 % interval of the gain, by Student's t over the repeats; None of one repeat."""
        pairs = zip(self.default, self.tuned, self.again, strict=True)
        gains = [1 - 2 * tuned / (first + second) for first, tuned, second in pairs]
        if len(gains) < 2:
            return None
        from scipy.special import stdtrit

        half = float(stdtrit(len(gains) - 1, 0.95)) * stdev(gains) / math.sqrt(len(gains))
        return fmean(gains) - half, fmean(gains) + half

    @property
    def noise(self) -> float:
        """Relative difference of the default from itself: in its two turns of a repeat, the median over repeats, or in
        the medians of its first and its second turns, whichever is more; 0.5 % at least.
        """
        apart = median(abs(one / other - 1) for one, other in zip(self.default, self.again, strict=True))
        return max(WORTHWHILE, apart, abs(median(self.default) / median(self.again) - 1))

    @property
    def take_tuned(self) -> bool:
        """Whether it was faster by more than the noise, and formed as planned."""
        return self.gain > self.noise and not self.deviation

    @property
    def stock_time(self) -> float:
        """Time of the plan recommended for DDP: the tuned plan or the default."""
        return self.tuned_time if self.take_tuned else self.default_time

    @property
    def executed_time(self) -> float:
        """Median over the turns of the executor's plan; there must be some."""
        return median(self.executed)

    @property
    def take_executor(self) -> bool:
        """Whether its plan was faster than the one recommended for DDP by more than the noise."""
        return bool(self.executed) and 1 - self.executed_time / self.stock_time > self.noise

    @property
    def verdict(self) -> str:
        """The result in a sentence or two."""
        if not self.executed:
            return self._stock_verdict
        if self.take_executor:
            against_default, against_stock = (1 - self.executed_time / x for x in (self.default_time, self.stock_time))
            tuned = f", {against_stock:.1%} less than {self._stock}" if self.take_tuned else ""
            return (
                f"Take the executor's plan: it took {against_default:.1%} less time than the default{tuned}, "
                f"beyond the noise of {self.noise:.1%}."
            )
        apart = 1 - self.executed_time / self.stock_time
        how = f"{apart:.1%} less" if apart >= 0 else f"{-apart:.1%} more"
        return f"{self._stock_verdict} The executor's plan took {how} time than {self._stock}."

    @property
    def _stock(self) -> str:
        return "DDP's tuned plan" if self.take_tuned else "the default"

    @property
    def _stock_verdict(self) -> str:
        """The verdict on DDP's plans."""
        saved = f"took {self.gain:.1%} less time"
        if self.take_tuned:
            return f"Take the tuned plan: it {saved}, beyond the noise of {self.noise:.1%}."
        if self.deviation:
            return f"Keep the default: the tuned plan was not formed ({self.deviation})."
        if self.gain < 0:
            return f"Keep the default: the tuned plan was {-self.gain:.1%} slower (noise {self.noise:.1%})."
        return f"Keep the default: the tuned plan {saved}, within the noise of {self.noise:.1%}."


PLANNING = 1800.0
"""Seconds that the other ranks wait for a decision of rank 0: planning large models takes minutes."""

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """A request to tune, with the folder for results.

    subject:  a workload, which is replayed, or PACKAGE.MODULE:FACTORY
    cluster:  known prices; None: measure them
    workload: known profile of the model; None: measure it
    scale:    replay computation so many times as slow
    limit:    seconds for each collective
    executor: whether to consider a plan of the executor
    """

    subject: str
    folder: str
    cluster: str | None = None
    workload: str | None = None
    scale: float = 1.0
    limits: Limits = Limits()
    limit: float = 60.0
    executor: bool = True

    @property
    def real(self) -> bool:
        """Whether the subject is a user's model."""
        return is_factory(self.subject)


@dataclass(slots=True)
class Session:
    """One rank of a session: its request, its place, and the groups over which rank 0 tells its decisions.

    control: bounded as every collective; planning: for long steps of rank 0
    kept:    the files that exist
    """

    asked: TuneRequest
    place: Place
    watch: Watchdog
    voice: Voice
    control: Any
    planning: Any
    kept: list[str] = field(default_factory=list)

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.place.rank == 0

    def path(self, name: str) -> Path:
        """A file of the folder."""
        return Path(self.asked.folder) / name

    def decided(self, make: Callable[[], Made], doing: str, planning: bool = False) -> Made:
        """The result of ``make`` on rank 0, on every rank; or its error, on every rank. ``planning``: it takes long."""
        import torch.distributed as dist

        self.watch.beat(doing)
        # Nothing tells of progress meanwhile; a rank 0 that is gone is noticed at once all the same.
        with self.watch.allowing(self.watch.patience + (PLANNING if planning else 0.0)):
            outcome: list[Any] = [_outcome(make) if self.first else None]
            dist.broadcast_object_list(outcome, 0, group=self.planning if planning else self.control)
        value, error = outcome[0]
        if error is not None:
            raise error
        made: Made = value
        return made

    def keep(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file on rank 0, and mention it in every later failure."""
        write(self.path(name))
        if name not in self.kept:
            self.kept.append(name)
        self.watch.kept = f"; in {self.asked.folder} there are {', '.join(self.kept)}"


def _outcome(make: Callable[[], Any]) -> tuple[Any, OsfError | None]:
    try:
        return make(), None
    except StoppedError:
        raise  # this rank ends now; the others notice
    except OsfError as error:
        return None, error
