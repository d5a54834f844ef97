"""Slowest repeats of a size: how late they are on healthy machines, on busy networks, and where packets are lost.

A lost packet is sent again after a timeout: 0.2 s with Linux's TCP, whatever the size, and up to seconds with RDMA. So
a few calls are very late and the median is as it should be. Other traffic disturbs most calls, by less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np

from osfmodel.cost.shapes import Array


class Tail(NamedTuple):
    """Distribution of ln(slowest repeat / median) of a size: a t distribution around ``middle``, as wide as ``spread``.

    At a fraction ``share`` of the sizes some repeat has waited for ``seconds`` beside.
    """

    middle: float = 0.2
    spread: float = 0.3
    share: float = 0.0
    seconds: float = 0.0


HEALTHY_TAIL = Tail()
BUSY_TAILS = (HEALTHY_TAIL, Tail(0.7, 0.7))
"""Of a network that others use: a steady stream delays all calls alike."""
LOSS_TAILS: Mapping[float, tuple[Tail, ...]] = {
    seconds: tuple(Tail(share=share, seconds=seconds) for share in (0.25, 0.75)) for seconds in (0.2, 1.0)
}
"""Of lost packets, by the seconds of a timeout: of Linux's TCP, and of RDMA with NCCL's settings."""
ANY_TAIL = (*BUSY_TAILS, *chain.from_iterable(LOSS_TAILS.values()))
FREEDOM = 4.0
"""Degrees of freedom of all t distributions here: of slowest repeats, and of medians."""
WAITED = 0.5
"""Spread of ln(slowest / median) where a repeat waited: timeouts add up, or grow."""
ODD, RANGE = 0.02, math.log(1000)
"""Fraction of sizes with a slowest repeat that has nothing to do with the network, and the range of its logarithm."""


def log_likelihood(lateness: Array, times: Array, tail: Tail) -> float:
    """ln of the density of ``lateness``, ln(slowest / median) of each size, with these medians in seconds."""
    found = (1 - tail.share) * _density(lateness, tail.middle, tail.spread)
    if tail.share:
        found = found + tail.share * _density(lateness, np.log1p(tail.seconds / times) + tail.middle, WAITED)
    return float(np.log((1 - ODD) * found + ODD / RANGE).sum())


def _density(values: Array, middle: Array | float, spread: float) -> Array:
    found: Array = np.exp(log_density_of_t(((values - middle) / spread) ** 2)) / spread
    return found


def log_density_of_t(squares: Array) -> Array:
    """ln of the density of a t distribution of FREEDOM degrees, at values with these squares."""
    half = (FREEDOM + 1) / 2
    top = math.lgamma(half) - math.lgamma(FREEDOM / 2) - 0.5 * math.log(FREEDOM * math.pi)
    found: Array = top - half * np.log1p(squares / FREEDOM)
    return found
