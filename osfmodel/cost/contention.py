"""What several collectives in flight get: the law, and the fit of its one parameter.

One flow alone may not fill the wires: n flows together go

    X(n) = g (1 - (1 - 1/g)^n)

times as fast as one, X(1) = 1, towards g for many: each new flow takes the same part, 1/g, of what the others leave. g,
the *gain* of simultaneity, is measured. With g = 1 one flow fills the wires, and several only hide start-ups. X rises,
and X(n)/n falls with n.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from osfmodel.errors import CostError

COARSE = 1000
"""Steps in 1/g of the search that brackets the best gain, and so the largest gain that is tried."""


UNBOUNDED = 0.99 * COARSE


def together(gain: float, flows: int) -> float:
    """X(n): how many times as fast as one alone ``flows`` transfers go together."""
    return gain * (1 - (1 - 1 / gain) ** flows) if flows > 1 else 1


def time_together(alone: float, startup: float, gain: float, flows: int) -> float:
    """Seconds that each of ``flows`` equal collectives takes, started at once, of which one alone takes ``alone``."""
    return startup + (alone - startup) * flows / together(gain, flows)


def fit_gain(times: Mapping[int, float], startup: float = 0.0) -> float:
    """The gain of least squared relative error for ``times``: flows at once -> seconds of each of them.

    ``UNBOUNDED`` or more where several take no longer than one, so that any large gain is as good.
    The time of one flow is taken as it was measured, ``startup`` seconds of it as start-up. Raises CostError where one
    flow, or several, were not measured, or where one takes no longer than its start-up.
    """
    from scipy.optimize import minimize_scalar

    if times.get(1, 0) <= startup or max(times) < 2:
        raise CostError("a gain needs the time of one flow, above its start-up, and that of two or more at once")
    several = {flows: time for flows, time in times.items() if flows > 1}

    def loss(part: float) -> float:
        found = [time_together(times[1], startup, 1 / part, flows) / time - 1 for flows, time in several.items()]
        return sum(error**2 for error in found)

    parts = np.linspace(1 / COARSE, 1, COARSE)
    best = int(np.argmin([loss(part) for part in parts]))
    low, high = parts[max(best - 1, 0)], parts[min(best + 1, COARSE - 1)]
    polished = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    return float(1 / min((polished.x, parts[best]), key=loss))
