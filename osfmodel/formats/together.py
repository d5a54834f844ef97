"""Sentences on imports whose parts do not add up to the measured step, or whose ranks are apart."""

from __future__ import annotations

from osfmodel.entities.display import show_time

OFF = 0.05
"""Relative difference from which a reassembled step is reported as off, and ranks as apart."""


def off(again: float, measured: float) -> str:
    """A warning if the parts give ``again`` seconds where a step of ``measured`` was seen; "" if they agree."""
    if not measured or abs(again / measured - 1) <= OFF:
        return ""
    return f"put together again, the step is off by {again / measured - 1:+.0%}: take predictions from it as rough"


def apart(seconds: float, step: float, slowest: str = "the last rank") -> str:
    """A warning if ``slowest`` has its gradients so much later than the first rank; "" below 5 % of a step."""
    if not step or seconds <= OFF * step:
        return ""
    return (
        f"ranks are apart: {slowest} has its gradients {show_time(seconds)} later than the first "
        f"({seconds / step:.0%} of a step); predictions keep that wait at every number of workers"
    )
