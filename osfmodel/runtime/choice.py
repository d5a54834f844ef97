"""Whether a tuned plan that was measured beside the default is to be recommended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from osfmodel.tune import WORTHWHILE


@dataclass(frozen=True, slots=True)
class Choice:
    """The default, the tuned plan, and the default again, in turn: seconds per iteration of each repeat.

    ``deviation`` says how the buckets that DDP formed differ from the tuned plan; nothing where they do not.
    """

    default: Sequence[float]
    tuned: Sequence[float]
    again: Sequence[float]
    deviation: str = ""

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
        """Part of the default's time that the tuned plan saved; below 0 where it was slower."""
        return 1 - self.tuned_time / self.default_time

    @property
    def noise(self) -> float:
        """By how much the default differs from itself: in its two turns of a repeat, the median over repeats, or in
        the medians of its first and its second turns, whichever is more; 0.5 % at least.
        """
        apart = median(abs(one / other - 1) for one, other in zip(self.default, self.again, strict=True))
        return max(WORTHWHILE, apart, abs(median(self.default) / median(self.again) - 1))

    @property
    def take_tuned(self) -> bool:
        """Whether it was faster by more than the noise, and formed as planned."""
        return self.gain > self.noise and not self.deviation

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        saved = f"measured {self.gain:.1%} less time"
        if self.take_tuned:
            return f"Take the tuned plan: it {saved}, beyond the noise of {self.noise:.1%}."
        if self.deviation:
            return f"Keep the default: the tuned plan was not formed ({self.deviation})."
        if self.gain < 0:
            return f"Keep the default: the tuned plan measured {-self.gain:.1%} slower (noise {self.noise:.1%})."
        return f"Keep the default: the tuned plan {saved}, within the noise of {self.noise:.1%}."
