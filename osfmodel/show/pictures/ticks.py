"""Round numbers along an axis, and the unit of an axis of times."""

from __future__ import annotations

import math

STEPS = (1, 2, 5, 10)


def even_ticks(low: float, high: float, most: int) -> list[float]:
    """At most ``most`` multiples of 1, 2 or 5 times a power of ten in the interval; its start if it is empty."""
    if not high > low:
        return [low]
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in STEPS if step * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def decade_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers on a logarithmic axis: whole decades; in a narrow one also 2 and 5 times as much, or even steps."""
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = _in_decades(low, high, factors)
        if most / 2 <= len(ticks) <= most:
            return ticks
    ticks = _in_decades(low, high, (1,))
    if len(ticks) > most:
        return ticks[:: math.ceil(len(ticks) / most)]
    return even_ticks(low, high, most)


def time_unit(end: float) -> tuple[str, float]:
    """The unit for times up to ``end`` seconds, and how many of it make a second."""
    return next(((unit, factor) for unit, factor in (("s", 1.0), ("ms", 1e3)) if end * factor >= 2), ("µs", 1e6))


def _in_decades(low: float, high: float, factors: tuple[int, ...]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [float(f"{factor}e{power}") for power in powers for factor in factors]
    return [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
