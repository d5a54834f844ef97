"""When messages of gradients had ended on a host, as the work that needs them tells.

A library that uses threads of the host, such as gloo, may close its note of a message late, when the thread that trains
has already gone on with what came of it. DDP waits for its buckets in their order and copies the gradients of each
back; the optimizer needs them all. So a message had ended when the pause before its copies was over; one that is in
flight when the optimizer begins, when the longest pause before that was.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from osfmodel.formats.kineto_collectives import Found
from osfmodel.workload import holds_gradients


@dataclass(frozen=True, slots=True)
class Needs:
    """What the host did in a step that needs its gradients, microseconds; all ascending.

    backward:    from when to when it evaluated nodes of the last backward
    accumulated: when it had accumulated each gradient
    copies:      rows (start, end) of DDP's copies of gradients out of their buckets, after backward
    updates:     when steps of optimizers began
    busy:        rows (start, end): when it computed
    """

    backward: tuple[float, float]
    accumulated: np.ndarray
    copies: np.ndarray
    updates: np.ndarray
    busy: np.ndarray

    def ended(self, found: Sequence[Found]) -> list[Found]:
        """The collectives of the step in the order in which they were submitted, none of gradients ending too late."""
        ended = []
        before = reached = -math.inf
        for one in found:
            if one.kind != "all_reduce" or not holds_gradients(one.dtype) or one.submitted < self.backward[0]:
                ended.append(one)
                continue
            latest = min(self._copied(before), self._updated(one, max(one.submitted, reached)))
            ended.append(one._replace(end=latest) if one.start < latest < one.end else one)
            before, reached = one.submitted, ended[-1].end
        return ended

    def _updated(self, one: Found, since: float) -> float:
        """When the wait ended, later than ``since``, after which the optimizer began, for a message in flight then."""
        begin = float(np.append(self.updates, math.inf)[np.searchsorted(self.updates, one.submitted)])
        return math.inf if one.end <= begin else self._went_on(min(max(since, self.backward[1]), begin), begin)

    def _copied(self, before: float) -> float:
        """When the wait ended after which a message was copied, given when that before it was submitted.

        Of no more gradients than were there then are copies in the buckets before it.
        """
        place = int(np.searchsorted(self.accumulated, before, "right"))
        if place >= len(self.copies) or (place and len(self.copies) != len(self.accumulated)):
            return math.inf
        since = float(self.copies[place - 1, 1]) if place else self.backward[1]
        return self._went_on(since, float(self.copies[place, 0]))

    def _went_on(self, since: float, until: float) -> float:
        """The end of the longest pause between two times; the second where there is none."""
        first, last = np.searchsorted(self.busy[:, 1], since, "right"), np.searchsorted(self.busy[:, 0], until)
        rows = np.clip(self.busy[first:last], since, until)
        starts, ends = np.append(since, rows[:, 1]), np.append(rows[:, 0], until)
        longest = int(np.argmax(ends - starts))
        return float(ends[longest]) if ends[longest] > starts[longest] else until
